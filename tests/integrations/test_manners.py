"""A fit is a guest in the process of another program: what it leaves alone there, through every door."""

import sys
import time
from pathlib import Path

import pytest
import short_trainings

import perf_callbacks

pytestmark = pytest.mark.usefixtures("accelerate_state")

OURS = str(Path(perf_callbacks.__file__).parent)


@pytest.mark.parametrize("way", short_trainings.DOORS)
def test_a_mocked_clock_is_never_read_by_us(tmp_path, monkeypatch, way):
    readers = set()

    def mocked(original):
        def read(*args):
            readers.add(sys._getframe(1).f_code.co_filename)
            return original(*args)

        return read

    for name in ("perf_counter", "monotonic", "sleep", "time"):
        monkeypatch.setattr(time, name, mocked(getattr(time, name)))
    short_trainings.DOORS[way](tmp_path, lambda _: None, steps=4, every=2, report=True)
    assert [reader for reader in readers if reader.startswith(OURS)] == []
