"""An interrupt anywhere in our code, from the start of a fit until its fourth step, ends it and leaves nothing behind.

`benchmarks/interrupts.py` tries many more moments, by a signal. The process is compared by the fixtures of all tests.
"""

import contextlib
import gc
import random
import signal
import sys
from pathlib import Path

import pytest
from collector import automatic
from faults import PACKAGE, Points, profiled
from sampling import DAY
from trainings.doors import DOORS
from transformers import Trainer

pytestmark = [
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.filterwarnings("ignore:Detected KeyboardInterrupt", "ignore::RuntimeWarning"),
    # Python swallows what is raised in a callback of the collector, and pytest tells of it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTS = (
    *("integrations", "session.py", "checklist.py", "lightning.py"),
    *("kernel/fit/recorder.py", "report/report_file.py", "loaders/epoch_waits.py", "advice"),
    *("flops/observer.py", "flops/training_filter.py", "flops/fingerprint.py", "flops/count_records.py"),
    *("stragglers/observer.py", "stalls/observer.py", "memory/observer.py", "memory/step_memory.py"),
)
WHERE = tuple(str(Path(PACKAGE, part)) for part in PARTS)
STEPS = 4


class Interrupt(Points):
    """Counts the points in code of ours where Python looks for signals, and raises at one, or gets a signal there.

    These are the start of a function, and the end of a call into C.
    """

    events = ("call", "c_return")

    def __init__(self, at=None, where=WHERE, signal_number=None):
        super().__init__(where)
        self.at, self.signal_number, self.points = at, signal_number, 0

    def come_to(self, _point, _frame):
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


def train(way, directory, interrupt):
    def after_step(step):
        if step == STEPS:
            sys.setprofile(None)

    profiled(interrupt, lambda: DOORS[way](directory, after_step=after_step, steps=STEPS + 1).run())


WAYS = [way for way in DOORS if way != "pytorch_lightning"]


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_leaves_nothing_behind(tmp_path, way):
    if way == "transformers" and not hasattr(Trainer, "_finalize_training"):
        pytest.skip(
            "transformers 4 tells no callback of an interrupt between two watched calls: docs/limits.md names it"
        )
    counting, callbacks = Interrupt(), [*gc.callbacks]
    train(way, tmp_path, counting)
    for at in draws(way, counting):
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # another run may have fewer points
            train(way, tmp_path, Interrupt(at))
        gc.collect()
        assert (at, automatic(), gc.callbacks) == (at, True, callbacks)


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_a_signal_handler_ends_the_fit(tmp_path, way, preempted):
    counting, callbacks = Interrupt(where=PACKAGE), [*gc.callbacks]
    train(way, tmp_path, counting)
    for at in draws(way, counting):
        sent = Interrupt(at, PACKAGE, preempted)
        try:
            train(way, tmp_path, sent)
        except PreemptError:
            sent.at = None
        gc.collect()
        assert sent.at is None or sent.points < at  # another run may have fewer points
        assert (at, automatic(), gc.callbacks) == (at, True, callbacks)


def draws(way, counting):
    """Two points that stay as long as the code does, and two of the day."""
    points = range(1, counting.points)
    return [at for seed in (way, way + DAY) for at in random.Random(seed).sample(points, 2)]
