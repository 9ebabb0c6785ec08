"""An interrupt anywhere in our code, from the start of a fit until its fourth step, ends it and leaves nothing behind.

`benchmarks/interrupts.py` tries many more moments, by a signal. The process is compared by the fixtures of all tests.
"""

import contextlib
import gc
import random
import signal
import sys
from inspect import CO_GENERATOR
from pathlib import Path

import pytest
from collector import automatic
from trainings.doors import DOORS
from transformers import Trainer

import perf_callbacks

pytestmark = [
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.filterwarnings("ignore:Detected KeyboardInterrupt", "ignore::RuntimeWarning"),
    # Python swallows what is raised in a callback of the collector, and pytest tells of it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PACKAGE = str(Path(perf_callbacks.__file__).parent)
PARTS = (
    *("integrations", "session.py", "checklist.py", "lightning.py"),
    *(
        "kernel/fit/recorder.py",
        "report/report_file.py",
        "loaders/epoch_waits.py",
        "advice",
    ),
    *("flops/observer.py", "flops/training_filter.py", "flops/fingerprint.py", "flops/count_records.py"),
    *("stragglers/observer.py", "stalls/observer.py", "memory/observer.py", "memory/step_memory.py"),
)
WHERE = tuple(str(Path(PACKAGE, part)) for part in PARTS)
STEPS = 4


class Interrupt:
    """Counts the points in code of ours where Python looks for signals, and raises at one, or gets a signal there.

    These are the start of a function, and the end of a call into C. Generators are left out, because Python swallows
    what is raised while it closes one.
    """

    def __init__(self, at=None, where=WHERE, signal_number=None):
        self.at, self.where, self.signal_number, self.points = at, where, signal_number, 0

    def __call__(self, frame, event, _argument):
        code = frame.f_code
        if (
            event in {"call", "c_return"}
            and code.co_filename.startswith(self.where)
            and not code.co_flags & CO_GENERATOR
        ):
            self.points += 1
            if self.points == self.at:
                if self.signal_number is None:
                    raise KeyboardInterrupt
                signal.raise_signal(self.signal_number)


class PreemptError(Exception):
    """Raised by the program's handler of a signal."""


@pytest.fixture
def preempted():
    def handle(_signum, _frame):
        raise PreemptError

    before = signal.signal(signal.SIGUSR1, handle)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def profiled(way, directory, interrupt):
    def after_step(step):
        if step == STEPS:
            sys.setprofile(None)

    sys.setprofile(interrupt)
    try:
        DOORS[way](directory, after_step=after_step, steps=STEPS + 1).run()
    finally:
        sys.setprofile(None)


WAYS = [way for way in DOORS if way != "pytorch_lightning"]


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_leaves_nothing_behind(tmp_path, way):
    if way == "transformers" and not hasattr(Trainer, "_finalize_training"):
        pytest.skip(
            "transformers 4 tells no callback of an interrupt between two watched calls: docs/limits.md names it"
        )
    counting, found = Interrupt(), [*gc.callbacks]
    profiled(way, tmp_path, counting)
    drawn = random.Random(way)
    for at in sorted(drawn.sample(range(1, counting.points), 4)):
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # another run may have fewer points
            profiled(way, tmp_path, Interrupt(at))
        gc.collect()
        assert (at, automatic(), gc.callbacks) == (at, True, found)


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_a_signal_handler_ends_the_fit(tmp_path, way, preempted):
    counting, found = Interrupt(where=PACKAGE), [*gc.callbacks]
    profiled(way, tmp_path, counting)
    drawn = random.Random(way)
    for at in sorted(drawn.sample(range(1, counting.points), 4)):
        sent = Interrupt(at, PACKAGE, preempted)
        try:
            profiled(way, tmp_path, sent)
        except PreemptError:
            sent.at = None
        gc.collect()
        assert sent.at is None or sent.points < at  # another run may have fewer points
        assert (at, automatic(), gc.callbacks) == (at, True, found)
