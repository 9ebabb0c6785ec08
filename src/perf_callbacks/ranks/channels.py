"""Named channels between ranks, with one text of each rank, and one that all read, which the exchange doesn't."""

from abc import ABC, abstractmethod

from perf_callbacks.ranks.node import FileNotes
from perf_callbacks.ranks.store import StoreNotes, rank_key


class Channel:
    """A channel of one fit, used by the thread of the exchange. Notes of other fits are ignored."""

    def __init__(self, name: str, board: StoreNotes | FileNotes, fit: str, *, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.fit = fit
        self.seen = ""
        """Newest shared note here, with the id of its fit. A machine's first rank may pass it on to the others."""
        self._name, self._board = name, board

    @property
    def reads_all(self) -> bool:
        """False: another rank of this machine reads the notes of all ranks."""
        return isinstance(self._board, StoreNotes)

    def put(self, note: str) -> None:
        self._board.write(rank_key(self._name, self.rank), f"{self.fit} {note}")

    def notes(self) -> dict[int, str]:
        """None if another rank of this machine reads the notes."""
        if not isinstance(self._board, StoreNotes):
            return {}
        keys = {rank_key(self._name, rank): rank for rank in range(self.world_size)}
        notes = {keys[key]: self._own(text) for key, text in self._board.read_some(*keys).items()}
        return {rank: note for rank, note in notes.items() if note}

    def shared(self) -> str:
        """Read the shared note, perhaps ""."""
        self.seen = next(iter(self._board.read(self._name)), "")
        return self._own(self.seen)

    def share(self, note: str) -> None:
        self.seen = f"{self.fit} {note}"
        self._board.write(self._name, self.seen)

    def claim(self, note: str) -> bool:
        """Write the shared note. False: another rank has changed the note that this rank saw."""
        new = f"{self.fit} {note}"
        claimed = isinstance(self._board, StoreNotes) and self._board.claim(self._name, new, self.seen)
        if claimed:
            self.seen = new
        return claimed

    def forget(self) -> None:
        """The machine's other ranks see no shared note until this rank reads the note again."""
        self.seen = ""

    def _own(self, text: str) -> str:
        """Return a note without the id of its fit; "" for a note of another fit."""
        fit, _, note = text.partition(" ")
        return note if fit == self.fit else ""


class ChannelHandler(ABC):
    """A feature that uses a channel. The exchange's thread keeps it alive: it must hold no recorder and no exchange."""

    @abstractmethod
    def round(self, channel: Channel, now: float) -> float | None:
        """Read and write notes. Return the seconds until the next round; None to wait for `Exchange.wake`."""

    @abstractmethod
    def leave(self, channel: Channel) -> None:
        """Write the final note of this rank at the end of its fit."""
