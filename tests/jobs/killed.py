"""A training that a test kills, through an integration: slow in its dataset, and maybe held up in C for a while."""

import ctypes
import time
from pathlib import Path

import torch

from jobs.rank import plan
from perf_callbacks.kernel.fit import summary_file
from perf_callbacks.kernel.records import fit_records

HELD_SECONDS = 6
"""Seconds for which C code holds the GIL."""


def load(directory):
    """What each row costs; a file says when C code is to hold the GIL."""
    if (directory / "hold").exists():
        (directory / "hold").unlink()
        (directory / "held").touch()
        ctypes.PyDLL(None).sleep(HELD_SECONDS)
    time.sleep(0.03)
    (directory / "trains").touch()


def main(door, directory, *, measured):
    torch.set_num_threads(1)
    summary_file.REPLACE_SECONDS, fit_records.ENOUGH_SECONDS = 2.0, 0.0
    directory = Path(directory)
    from trainings.doors import DOORS

    DOORS[door](directory, "the dataset", lambda *_: load(directory), steps=10**5, measured=measured).run()


if __name__ == "__main__":
    main(**plan())
