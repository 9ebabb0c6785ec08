"""Real training loops on a small machine: quick, and the same each time."""

import gc
import math
from types import SimpleNamespace

import pytest
import torch
from fakes import FakeClock

from perf_callbacks.advice import busy_lines
from perf_callbacks.flops import observer as counting
from perf_callbacks.garbage import growth
from perf_callbacks.integrations.lightning import hooks
from perf_callbacks.kernel.engine import engine
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process import collector


@pytest.fixture(autouse=True)
def _quick_collections(request, monkeypatch):
    """What goes through all that was ever imported is left out where collecting is not the matter: it takes a while."""
    if "checklist" in request.module.__name__:
        return
    quick = {
        "collect": lambda *_: gc.collect(0),
        "freeze": lambda: None,
        "unfreeze": lambda: None,
        "get_freeze_count": lambda: 0,
        "get_objects": list,
    }
    for module in (growth, collector):
        monkeypatch.setattr(module, "gc", SimpleNamespace(**vars(gc) | quick))


@pytest.fixture(autouse=True)
def _patient(request, monkeypatch):
    """On a busy machine no step may end for seconds: the fit is neither flushed early nor taken for abandoned.

    The end of a fit waits for a look at fits that go on, which is soon over.
    """
    monkeypatch.setattr(busy_lines, "SPREAD_SECONDS", 0.008)
    for seconds in ("FLUSH_SECONDS", "LATE_SECONDS"):
        monkeypatch.setattr(engine, seconds, math.inf)
    if "abandoned" not in request.module.__name__:
        monkeypatch.setattr(collector, "PATIENCE_SECONDS", math.inf)
        monkeypatch.setattr(counting, "PATIENCE_SECONDS", math.inf)


@pytest.fixture
def clock(monkeypatch):
    """A clock for all fits, which moves only where a test moves it."""
    clock = FakeClock()
    monkeypatch.setitem(Recorder.__init__.__kwdefaults__, "clock", clock)
    monkeypatch.setattr(hooks, "perf_counter", clock)
    return clock


@pytest.fixture
def accelerate_state():
    """Accelerate keeps its state in the process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    def reset():
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()

    reset()
    yield
    reset()


@pytest.fixture
def new_compiler():
    """The compiler of torch as new, before and after."""
    from torch._dynamo.utils import counters

    def reset():
        torch._dynamo.reset()
        counters.clear()

    reset()
    yield
    reset()
