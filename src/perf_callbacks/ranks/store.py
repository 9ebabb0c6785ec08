"""Notes that ranks leave for each other, in their process group's key-value store: text or columns, never unpickled."""

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
"""Bytes of packed parts under a key: about thirty ranks in the longest windows. More than 8 MiB closes a connection."""

MOST_WRITTEN = 1_000
"""Keys that are written at once."""

_NOBODY_WRITES = "?"

SHARE = 0.75
"""Share of a process's file descriptors that the connections of all ranks may use."""


def default_store() -> Any:
    if dist.is_available() and dist.is_initialized():
        return c10d.distributed_c10d._get_default_store()  # noqa: SLF001 torch has no public function for this
    return None


def shortage(store: Any, world_size: int, connections: int) -> str | None:
    """Return why the server can't take `connections` more; without descriptors, the training's next `open` would fail.

    Each rank decides by itself, because asking needs a new connection. Limits that differ between nodes are not
    detected.
    """
    allowed = open_files_allowed()
    if allowed is None or address(store) is None:
        return None
    needed = ceil((world_size + connections) / SHARE)
    if needed <= allowed:
        return None
    return f"{allowed:,} open files are allowed and {world_size:,} ranks would need {needed:,}; raise `ulimit -n`"


def address(store: Any) -> tuple[str, str] | None:
    """Return host and port. None: this store has no server."""
    inner = _innermost(store)
    return (str(inner.host), str(inner.port)) if isinstance(inner, c10d.TCPStore) else None


def open_files_allowed() -> int | None:
    """None: unlimited or unknown."""
    allowed = None if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if resource is None or allowed == resource.RLIM_INFINITY else allowed


class StoreNotes:
    """Notes by key. A note is never removed, only overwritten: once found, it can be read again without waiting.

    Their number doesn't grow with fits and windows.
    """

    def __init__(self, store: Any) -> None:
        self._store = c10d.PrefixStore("perf_callbacks", connection(store))
        self._found: set[str] = set()

    def write(self, key: str, note: str | bytes) -> None:
        self._store.set(key, note)

    def write_all(self, notes: Mapping[str, str | bytes]) -> None:
        keys = [*notes]
        for start in range(0, len(keys), MOST_WRITTEN):  # the server takes 131,072 keys at once
            some = keys[start : start + MOST_WRITTEN]
            self._store.multi_set(some, [notes[key] for key in some])

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """All keys must exist: the store would wait for a missing one."""
        notes: list[bytes] = self._store.multi_get(list(keys))
        return notes

    def claim(self, key: str, note: str, other: str) -> bool:
        """Write `note` if the key still holds `other`."""
        now: bytes = self._store.compare_set(key, other, note)
        return now == note.encode()

    def read(self, *keys: str) -> list[str]:
        """Return no notes at all if one is missing. Never wait."""
        new = [key for key in keys if key not in self._found]
        if new and not self._store.check(new):
            return []
        self._found.update(new)
        return [note.decode(errors="replace") for note in self._store.multi_get(list(keys))]

    def read_some(self, *keys: str) -> dict[str, str]:
        """Leave out missing notes. Never wait."""
        there = self._there(keys)
        notes = self._store.multi_get(there) if there else []
        return {key: note.decode(errors="replace") for key, note in zip(there, notes, strict=True)}

    def peek(self, key: str) -> str:
        """Read a note, or "", by one request; `multi_get` takes two, and waits for a missing key."""
        note: bytes = self._store.compare_set(key, _NOBODY_WRITES, _NOBODY_WRITES)
        return note.decode(errors="replace").removeprefix(_NOBODY_WRITES)

    def _there(self, keys: Sequence[str]) -> list[str]:
        """Find the keys that exist, by bisection: the store only checks that all keys of a list do."""
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
    """Open a separate connection: it handles one call at a time, and ours must not hold up the trainer's."""
    if hasattr(store, "clone"):  # torch >= 2.8
        return store.clone()
    inner = _innermost(store)
    if not isinstance(inner, c10d.TCPStore):
        return store  # in memory or in a file, and locked only during a look-up
    client = c10d.TCPStore(inner.host, inner.port, is_master=False, wait_for_workers=False, timeout=store.timeout)
    # An elastic launcher keeps its store while workers restart; notes of the earlier workers must not be read.
    return c10d.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), client)


def _innermost(store: Any) -> Any:
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return store
