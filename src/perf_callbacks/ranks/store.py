"""Notes that the ranks of a job leave for each other, in the key-value store of their process group.

The ranks use no collective and no further process group, only a connection to the store's server. A note is a few lines
of text, or packed columns of numbers. Notes are never unpickled.
"""

import os
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

import torch.distributed as dist

c10d: Any = dist  # torch documents this module's names without exporting them

LARGEST = 1_000_000
"""Largest size, in bytes, of the packed parts under a key, unless a single part is larger. The server closes a
connection that sends more than 8 MiB. The size is enough for the data of about thirty ranks in the longest windows with
signals."""

MOST_WRITTEN = 1_000
"""Largest number of keys that are written at once."""

_NOBODY_WRITES = "?"

SHARE = 0.75
"""The connections of all ranks may use at most this share of the files that a process may open."""


def default_store() -> Any:
    """Return the store of the default process group; None without a group."""
    if dist.is_available() and dist.is_initialized():
        return c10d.distributed_c10d._get_default_store()  # noqa: SLF001 torch has no public function for this
    return None


def shortage(store: Any, world_size: int, connections: int) -> str | None:
    """Return the reason why a store's server can't take `connections` more connections. None means that it can.

    Each rank has one connection already. If connections used up all descriptors of a process, its next `open` would
    fail, and so would training. Each rank decides by itself, because a rank can't ask other ranks before it has opened
    a new connection. The function doesn't detect limits that differ between nodes.
    """
    allowed = open_files_allowed()
    if allowed is None or address(store) is None:
        return None
    needed = ceil((world_size + connections) / SHARE)
    if needed <= allowed:
        return None
    return f"{allowed:,} open files are allowed and {world_size:,} ranks would need {needed:,}; raise `ulimit -n`"


def address(store: Any) -> tuple[str, str] | None:
    """Return host and port of a store's server; None for a store without a server."""
    inner = _innermost(store)
    return (str(inner.host), str(inner.port)) if isinstance(inner, c10d.TCPStore) else None


def open_files_allowed() -> int | None:
    """Return the number of files that this process may have open; None: unlimited or unknown."""
    allowed = None if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if resource is None or allowed == resource.RLIM_INFINITY else allowed


class StoreNotes:
    """Notes by key. A note is never removed, only overwritten.

    So a note that was found once can always be read again without waiting. The number of notes doesn't grow with the
    number of fits and windows. The notes are the settings, the newest window, and each rank's data of some windows.
    Each channel adds one shared note and one note per rank.
    """

    def __init__(self, store: Any) -> None:
        self._store = c10d.PrefixStore("perf_callbacks", connection(store))
        self._found: set[str] = set()

    def write(self, key: str, note: str | bytes) -> None:
        self._store.set(key, note)

    def write_all(self, notes: Mapping[str, str | bytes]) -> None:
        """Write or overwrite several notes. Each note comes with its key."""
        keys = [*notes]
        for start in range(0, len(keys), MOST_WRITTEN):  # the server takes 131,072 keys at once
            some = keys[start : start + MOST_WRITTEN]
            self._store.multi_set(some, [notes[key] for key in some])

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Read the bytes under these keys. All keys must exist: the store would wait for a missing key."""
        notes: list[bytes] = self._store.multi_get(list(keys))
        return notes

    def claim(self, key: str, note: str, other: str) -> bool:
        """Write `note` if the key still holds `other`. Return True if written."""
        now: bytes = self._store.compare_set(key, other, note)
        return now == note.encode()

    def read(self, *keys: str) -> list[str]:
        """Read the notes under these keys, in this order; an empty list if a note is missing. Never wait."""
        new = [key for key in keys if key not in self._found]
        if new and not self._store.check(new):
            return []
        self._found.update(new)
        return [note.decode(errors="replace") for note in self._store.multi_get(list(keys))]

    def read_some(self, *keys: str) -> dict[str, str]:
        """Read the notes under these keys, leaving out missing notes. Never wait."""
        there = self._there(keys)
        notes = self._store.multi_get(there) if there else []
        return {key: note.decode(errors="replace") for key, note in zip(there, notes, strict=True)}

    def peek(self, key: str) -> str:
        """Read a note; "" if missing.

        `peek` takes one request. `multi_get` would take two requests, and would wait for a missing key.
        """
        note: bytes = self._store.compare_set(key, _NOBODY_WRITES, _NOBODY_WRITES)
        return note.decode(errors="replace").removeprefix(_NOBODY_WRITES)

    def _there(self, keys: Sequence[str]) -> list[str]:
        """Find the keys that exist, by bisection. The store can only check that all keys of a list exist."""
        new = [key for key in keys if key not in self._found]
        if not new or self._store.check(new):
            self._found.update(new)
            return list(keys)
        if len(keys) == 1:
            return []
        half = len(keys) // 2
        return [*self._there(keys[:half]), *self._there(keys[half:])]


def rank_key(channel: str, rank: int) -> str:
    return f"{channel} {rank}"


def connection(store: Any) -> Any:
    """Open a separate connection to a store's server.

    A connection handles one call at a time. On a shared connection, a stalled call of this package would hold up the
    trainer's next call.
    """
    if hasattr(store, "clone"):  # torch >= 2.8
        return store.clone()
    inner = _innermost(store)
    if not isinstance(inner, c10d.TCPStore):
        return store  # in memory or in a file, and locked only during a look-up
    client = c10d.TCPStore(inner.host, inner.port, is_master=False, wait_for_workers=False, timeout=store.timeout)
    # An elastic launcher keeps its store while workers restart; notes of the earlier workers must not be read.
    return c10d.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), client)


def _innermost(store: Any) -> Any:
    """Return the store inside all layers of `PrefixStore`."""
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return store
