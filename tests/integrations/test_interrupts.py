"""An interrupt on any line of ours, from the start of a fit until its fourth step, ends it and leaves nothing behind.

`benchmarks/interrupts.py` tries many more moments, by a signal. The process is compared by the fixtures of all tests.
"""

import contextlib
import gc
import random
import signal
import sys
from pathlib import Path

import pytest
import short_trainings
from collector import automatic
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
    *("flops/observer.py", "flops/training_filter.py", "flops/outline.py", "flops/count_records.py"),
    *("stragglers/observer.py", "stalls/observer.py", "memory/observer.py", "memory/step_memory.py"),
)
WHERE = tuple(str(Path(PACKAGE, part)) for part in PARTS)
STEPS = 4


class Interrupt:
    """Counts lines of ours that run, and raises at one of them, or gets a signal there."""

    def __init__(self, at=None, where=WHERE, signal_number=None):
        self.at, self.where, self.signal_number, self.lines = at, where, signal_number, 0

    def __call__(self, frame, event, _argument):
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                if self.signal_number is None:
                    raise KeyboardInterrupt
                signal.raise_signal(self.signal_number)
        return self if frame.f_code.co_filename.startswith(self.where) else None


class PreemptError(Exception):
    """Raised by the program's handler of a signal."""


@pytest.fixture
def preempted():
    def handle(_signum, _frame):
        raise PreemptError

    before = signal.signal(signal.SIGUSR1, handle)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def traced(way, directory, interrupt):
    def after_step(step):
        if step == STEPS:
            sys.settrace(None)

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        short_trainings.DOORS[way](directory, after_step, steps=STEPS + 1)
    finally:
        sys.settrace(before)


WAYS = [way for way in short_trainings.DOORS if way != "pytorch_lightning"]


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_leaves_nothing_behind(tmp_path, way):
    if way == "transformers" and not hasattr(Trainer, "_finalize_training"):
        pytest.skip(
            "transformers 4 tells no callback of an interrupt between two watched calls: docs/limits.md names it"
        )
    counting, found = Interrupt(), [*gc.callbacks]
    traced(way, tmp_path, counting)
    drawn = random.Random(way)
    for at in sorted(drawn.sample(range(1, counting.lines), 4)):
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # another run may have fewer lines
            traced(way, tmp_path, Interrupt(at))
        gc.collect()
        assert (at, automatic(), gc.callbacks) == (at, True, found)


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_a_signal_handler_ends_the_fit(tmp_path, way, preempted):
    counting, found = Interrupt(where=PACKAGE), [*gc.callbacks]
    traced(way, tmp_path, counting)
    drawn = random.Random(way)
    for at in sorted(drawn.sample(range(1, counting.lines), 4)):
        sent = Interrupt(at, PACKAGE, preempted)
        try:
            traced(way, tmp_path, sent)
        except PreemptError:
            sent.at = None
        gc.collect()
        assert sent.at is None or sent.lines < at  # another run may have fewer lines
        assert (at, automatic(), gc.callbacks) == (at, True, found)
