"""Send notes from all ranks of a machine to the machine's first rank, without a process group.

The ranks meet in the store that the launcher's environment variables point to.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from perf_callbacks.kernel.foreign_errors import let_pass

c10d: Any = dist  # torch documents this module's names without exporting them

PATIENCE_SECONDS = 20.0
"""Seconds to wait for the store, and then for the note of each rank."""


def hand_in(note: str, local: tuple[int, int], environ: Mapping[str, str]) -> list[str | None] | None:
    """Send a note to the first rank of this machine. The first rank gets all notes, and other ranks get None.

    In the list of notes, None stands for a note that didn't come in time. Raise an exception if the ranks can't reach
    the store.
    """
    place, number = local
    if number == 1:
        return [note]
    store, rank, _ = next(c10d.rendezvous("env://", timeout=timedelta(seconds=PATIENCE_SECONDS)))
    first = rank - place  # launchers number the ranks of a machine one after the other
    prefix = f"perf_callbacks check {environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store.set(f"{prefix} {rank}", note)
    if place:
        return None
    store.set_timeout(timedelta(seconds=PATIENCE_SECONDS))
    return [_note(store, f"{prefix} {other}") for other in range(first, first + number)]


def _note(store: Any, key: str) -> str | None:
    try:
        return bytes(store.get(key)).decode()
    except RuntimeError as error:  # the note didn't come in time
        let_pass(error)
        return None
