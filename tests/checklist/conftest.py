"""What the collector was told is taken back."""

import gc

import pytest


@pytest.fixture(autouse=True)
def _frozen_as_found():
    before = gc.get_freeze_count() > 1000  # fewer are the interpreter's own
    yield
    assert (gc.get_freeze_count() > 1000) is before
