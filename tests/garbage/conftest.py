"""What the collector was told is taken back."""

import gc

import pytest

MARK = [None]
"""An old object: frozen before the tests of a module begin."""


def _frozen():
    """Whether `MARK` is frozen, and so in no generation. Counting all frozen objects would take 50 milliseconds."""
    return not any(one is MARK for one in gc.get_objects())


@pytest.fixture(autouse=True)
def _frozen_as_found():
    before = _frozen()
    yield
    assert _frozen() is before


@pytest.fixture(autouse=True)
def looks_are_never_too_often(monkeypatch):
    """The steps of these tests follow each other faster than any training's."""
    monkeypatch.setattr("perf_callbacks.garbage.growth.LOOK_SECONDS", 0)
