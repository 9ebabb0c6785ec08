"""What the collector was told is taken back."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _frozen_as_found():
    """Compare once per module, because counting half a million frozen objects takes 50 milliseconds."""
    before = gc.get_freeze_count() > 1000  # fewer are the interpreter's own
    yield
    assert (gc.get_freeze_count() > 1000) is before


@pytest.fixture(autouse=True)
def looks_are_never_too_often(monkeypatch):
    """The steps of these tests follow each other faster than any training's."""
    monkeypatch.setattr("perf_callbacks.garbage.growth.LOOK_SECONDS", 0)
