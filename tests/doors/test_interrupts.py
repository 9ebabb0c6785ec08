"""A KeyboardInterrupt on any line of ours, from the beginning of a fit until its fourth step, leaves nothing behind.

`benchmarks/interrupts.py` tries many more moments, by a signal. The process is compared by the fixtures of all tests.
"""

import contextlib
import gc
import random
import sys
from pathlib import Path

import pytest
import through
from collector import automatic
from transformers import Trainer

import perf_callbacks

pytestmark = [
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.filterwarnings("ignore:Detected KeyboardInterrupt", "ignore::RuntimeWarning"),
    # Python swallows what is raised in a callback of the collector, and pytest tells of it.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTS = ("doors", "session", "loop.py", "transformers.py", "accelerate.py", "lightning.py")
WHERE = tuple(str(Path(perf_callbacks.__file__).parent / part) for part in PARTS)
STEPS = 4


class Interrupt:
    """Counts lines of ours that run, and raises at one of them."""

    def __init__(self, at=None):
        self.at, self.lines = at, 0

    def __call__(self, frame, event, _argument):
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self if frame.f_code.co_filename.startswith(WHERE) else None


def traced(way, directory, interrupt):
    def after_step(step):
        if step == STEPS:
            sys.settrace(None)

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        through.DOORS[way](directory, after_step, steps=STEPS + 1)
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("way", [way for way in through.DOORS if way != "pytorch_lightning"])
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
