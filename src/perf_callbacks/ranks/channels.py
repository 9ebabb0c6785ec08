"""Named channels between ranks: features write notes, and the exchange passes the notes on without reading them.

A channel has one note of each rank, and one shared note that all ranks read. A note is text, which the feature packs
and unpacks.
"""

from abc import ABC, abstractmethod

from perf_callbacks.ranks.node import FileNotes
from perf_callbacks.ranks.store import StoreNotes, rank_key


class Channel:
    """A channel of one fit, used by the thread of the exchange. Notes of other fits are ignored."""

    def __init__(self, name: str, board: StoreNotes | FileNotes, fit: str, *, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.fit = fit
        """Id of the fit."""
        self.seen = ""
        """Most recent shared note that this rank read or wrote. The text begins with the id of the fit. In a job of
        many ranks, the first rank of each machine passes the shared note on to the machine's other ranks."""
        self._name, self._board = name, board

    @property
    def reads_all(self) -> bool:
        """True if this rank reads the notes of all ranks. False if another rank of the same machine reads the notes."""
        return isinstance(self._board, StoreNotes)

    def put(self, note: str) -> None:
        self._board.write(rank_key(self._name, self.rank), f"{self.fit} {note}")

    def notes(self) -> dict[int, str]:
        """Read the notes of all ranks; empty if another rank of this machine reads the notes."""
        if not isinstance(self._board, StoreNotes):
            return {}
        keys = {rank_key(self._name, rank): rank for rank in range(self.world_size)}
        found = {keys[key]: self._own(text) for key, text in self._board.read_some(*keys).items()}
        return {rank: note for rank, note in found.items() if note}

    def shared(self) -> str:
        """Read the shared note; "" if there is none."""
        self.seen = next(iter(self._board.read(self._name)), "")
        return self._own(self.seen)

    def share(self, note: str) -> None:
        self.seen = f"{self.fit} {note}"
        self._board.write(self._name, self.seen)

    def claim(self, note: str) -> bool:
        """Write the shared note, and return True. Return False if another rank changed the note that this rank saw."""
        new = f"{self.fit} {note}"
        claimed = isinstance(self._board, StoreNotes) and self._board.claim(self._name, new, self.seen)
        if claimed:
            self.seen = new
        return claimed

    def forget(self) -> None:
        """Forget the shared note. The machine's other ranks see no shared note until this rank reads the note again."""
        self.seen = ""

    def _own(self, text: str) -> str:
        """Return a note without the id of its fit; "" for a note of another fit."""
        fit, _, note = text.partition(" ")
        return note if fit == self.fit else ""


class ChannelHandler(ABC):
    """Base class for a feature that uses a channel. The exchange calls the handler in a side thread.

    The side thread keeps the handler alive, so a handler must hold neither the recorder nor the exchange.
    """

    @abstractmethod
    def round(self, channel: Channel, now: float) -> float | None:
        """Read and write notes. Return the seconds until the next round; None to wait for `Exchange.wake`."""

    @abstractmethod
    def leave(self, channel: Channel) -> None:
        """Write the final note of this rank at the end of its fit."""
