"""Where ranks of one job leave notes for each other: the key-value store that their process group came together by.

No collective, no group and no socket of our own. A note is a few lines of text; nothing is unpickled.
"""

import os
import sys
from math import ceil
from typing import Any

import torch.distributed as dist

c10d: Any = dist  # torch does not export to type checkers what it documents

LONGEST = 40_000
"""Bytes that a note may have."""

SHARE = 0.75
"""Connections of ranks may take up this share of the files that a process may open."""


def default_store() -> Any:
    """The store of the default process group; None where there is no group."""
    if dist.is_available() and dist.is_initialized():
        return c10d.distributed_c10d._get_default_store()  # noqa: SLF001 the one way to it
    return None


def shortage(store: Any, world_size: int) -> str | None:
    """Why the process that serves a store can't hold a second connection of each rank; None where it can.

    A process that runs out of descriptors fails in its own `open`, and training with it. All ranks find the same by
    themselves, since a question to the others would take the connection that it is about; limits that differ between
    nodes are not seen.
    """
    allowed = open_files_allowed()
    if allowed is None or not isinstance(_innermost(store), c10d.TCPStore):
        return None
    needed = ceil(2 * world_size / SHARE)
    if needed <= allowed:
        return None
    return f"{allowed:,} open files are allowed and {world_size:,} ranks would need {needed:,}; raise `ulimit -n`"


def open_files_allowed() -> int | None:
    """How many files this process may have open; None where there is no limit, or none is known."""
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 not on Windows

    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if allowed == resource.RLIM_INFINITY else allowed


class Board:
    """Notes by key. No note is ever taken down, only written over.

    So what was once found is there for good, and reading it never waits. What is left when the process group ends is
    one note per rank and two of rank 0, however many fits and windows there were.
    """

    def __init__(self, store: Any) -> None:
        self._store = c10d.PrefixStore("perf_callbacks", connection(store))
        self._found: set[str] = set()

    def write(self, key: str, note: str) -> None:
        """Leave a note, or write over it."""
        self._store.set(key, note)

    def replace(self, key: str, note: str, other: str) -> None:
        """Write over a note, unless somebody else has."""
        self._store.compare_set(key, note, other)

    def read(self, *keys: str) -> list[str]:
        """The notes under some keys, in order; none of them while one is missing. Never waits for one."""
        new = [key for key in keys if key not in self._found]
        if new and not self._store.check(new):
            return []
        self._found.update(new)
        return [_text(note) for note in self._store.multi_get(list(keys))] if keys else []


def _text(note: bytes) -> str:
    return note.decode(errors="replace") if len(note) <= LONGEST else ""


def connection(store: Any) -> Any:
    """A connection of our own to where a store leads.

    A connection does one thing at a time: on a shared one a call of ours that stalls would hold up the trainer's next.

    """
    if hasattr(store, "clone"):  # torch >= 2.8
        return store.clone()
    inner = _innermost(store)
    if not isinstance(inner, c10d.TCPStore):
        return store  # in memory or in a file, and locked for no longer than one look takes
    client = c10d.TCPStore(inner.host, inner.port, is_master=False, wait_for_workers=False, timeout=store.timeout)
    # An elastic launcher keeps its store while workers are restarted: what the last ones left is not for us.
    return c10d.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), client)


def _innermost(store: Any) -> Any:
    """The store that others only put a prefix to."""
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return store
