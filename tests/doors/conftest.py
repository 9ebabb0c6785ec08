"""Real training loops on a small machine: quick, and the same each time."""

import gc
from types import SimpleNamespace

import pytest
import torch

from perf_callbacks.checklist import garbage


@pytest.fixture(autouse=True, scope="module")
def _quick():
    """Accelerate collects garbage before each fit: not through all of the imported modules. Threads only wait here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _quick_collections(request, monkeypatch):
    """A full collection goes through all that was ever imported: where that is not the matter, a young one will do."""
    if "checklist" not in request.module.__name__:
        young = {**vars(gc), "collect": lambda *_: gc.collect(0)}
        monkeypatch.setattr(garbage, "gc", SimpleNamespace(**young))


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
