"""Notes that ranks leave for each other about stalls, so that one rank tells of all.

Each rank has one note, written now and then while steps end, and at once when they stop ending. Rank 0 reads all notes
when it stalls, and tells. If it does not, as its process hangs or its own steps go on, the next rank tells: each rank
waits a little longer than those below. A further key says that somebody has told, so that nothing is told twice.
"""

from collections.abc import Mapping

from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.ranks.node import Folder
from perf_callbacks.ranks.store import Board
from perf_callbacks.stalls.diagnosis import LONGER, RUNNING, STALLED, Blame, Note, blame, undecided

LOOK_SECONDS = 2.0
"""Seconds between two looks of a stalled rank."""

GRACE_SECONDS = 4.0
"""Seconds that rank 0 waits for ranks that notice later. For others, each doubling of the rank adds as many."""

BEATS = 4
"""Notes that a rank writes in the patience of a stall, while its steps end."""

SILENT_BEATS = 1.5
"""A rank whose note stays the same for as many of them is silent."""

NEAREST = 1
"""Ranks up to this one read all notes before they stall, to tell at once which ranks fell silent."""

_LOOKING, _TOLD, _OVER = "looking", "told", "over"


class StallNotes:
    """One rank's side of it. `say` is for the watch, the rest for the thread that talks with the store."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._mine: Note | None = None
        self._written: Note | None = None
        self._beats = self._looks = 0
        self._patience, self._doubt = 0.0, False
        self._notes: dict[str, Note | None] = {}
        self._earlier: tuple[float, Mapping[int, str]] | None = None
        self._since: float | None = None
        self._turn = 0.0
        self.said = ""
        """Word of the rank that tells, or will: which rank it is, and if it has told."""
        self.answered_at = float("-inf")
        """When the store last answered."""
        self.told = False
        """The stall of this rank is told, here or by another rank."""
        self.blamed: Blame | None = None
        """The ranks that this rank tells of. None: it doesn't, or not yet."""

    def say(self, note: Note, patience: float, *, doubt: bool = False) -> None:
        """Set the note of this rank. With a doubt, half of its patience is over."""
        self._patience, self._doubt = patience, doubt
        self._mine = note

    def round(self, board: Board | Folder, fit: str, now: float) -> float | None:
        """Do what is to be done now. Return the seconds until the next round; None: until there is a new note."""
        mine, pause = self._mine, None
        if mine is None:
            return None
        self._write(board, fit, mine)
        if mine.state == STALLED:
            pause = self._stalled(board, fit, now)
        else:
            self._well(board, fit, now)
        self.answered_at = now
        return pause

    def leave(self, board: Board | Folder, fit: str) -> None:
        """Say that the fit of this rank is over."""
        if self._mine is not None:
            self._write(board, fit, self._mine)

    def _write(self, board: Board | Folder, fit: str, mine: Note) -> None:
        if mine is not self._written:
            self._beats += 1  # so that a rank whose note stays the same is one that says nothing
            board.write(_key(self._rank), f"{fit} {self._beats}\n{pack(mine)}")
            self._written = mine

    def _well(self, board: Board | Folder, fit: str, now: float) -> None:
        if self.blamed is not None:
            board.write("stall", f"{fit} {self._rank} {_OVER}")
        self._since, self.told, self.blamed, self.said = None, False, None, ""
        if not self._doubt:
            self._earlier = None
        elif self._earlier is None and self._rank <= NEAREST and isinstance(board, Board):
            self._earlier = (now, self._texts(board, fit))

    def _stalled(self, board: Board | Folder, fit: str, now: float) -> float | None:
        """Wait for a lower rank to tell, then look at the notes."""
        if self.told:
            return None
        if self._since is None:
            self._since = self._turn = now
        said = next(iter(board.read("stall")), "")
        if said.startswith(fit) and said.endswith(_TOLD):
            self.said, self.told = said, True
            return None
        if said != self.said:  # another rank is looking
            self.said, self._turn = said, now
        if not isinstance(board, Board) or now - self._turn < GRACE_SECONDS * self._rank.bit_length():
            return LOOK_SECONDS  # notes of other machines are read by the rank that talks for this one
        if self._earlier is None:
            self._earlier = (now, self._texts(board, fit))
        self._judge(board, fit, now, now - self._since)
        return None if self.told else LOOK_SECONDS

    def _judge(self, board: Board, fit: str, now: float, waited: float) -> None:
        """Tell, unless it is too early to know who is silent, or the others may be waiting for a checkpoint."""
        before, earlier = self._earlier or (now, {})
        texts = self._texts(board, fit)
        notes = self._decoded(texts)
        later = [rank for rank in range(self._world_size) if rank not in notes or notes[rank].state == RUNNING]
        early = waited < GRACE_SECONDS or now - before < SILENT_BEATS * self._patience / BEATS
        silent = {rank for rank in later if rank in notes and texts[rank] == earlier.get(rank)}
        if waited < (LONGER - 1) * self._patience:  # in a checkpoint a note may stay the same for longer
            silent = {rank for rank in silent if not notes[rank].spanned}
        if (later and early) or undecided(notes, silent):
            self._looks += 1
            self.said = f"{fit} {self._rank} {_LOOKING} {self._looks}"
            board.write("stall", self.said)
        elif board.claim("stall", f"{fit} {self._rank} {_TOLD}", self.said):
            self.said = f"{fit} {self._rank} {_TOLD}"
            self.blamed = blame(notes, silent, self._world_size)
            self.told = True

    def _texts(self, board: Board, fit: str) -> dict[int, str]:
        """Read the notes of this fit."""
        keys = {_key(rank): rank for rank in range(self._world_size)}
        return {keys[key]: text for key, text in board.read_some(*keys).items() if text.startswith(fit)}

    def _decoded(self, texts: Mapping[int, str]) -> dict[int, Note]:
        """Decode notes. Thousands of ranks wait in few places, so most notes are equal and decoded once."""
        bodies = {rank: text.partition("\n")[2] for rank, text in texts.items()}
        for body in {*bodies.values()} - {*self._notes}:
            self._notes[body] = unpack(Note, body)
        decoded = {rank: self._notes[body] for rank, body in bodies.items()}
        self._notes = {body: self._notes[body] for body in {*bodies.values()}}
        return {rank: note for rank, note in decoded.items() if note is not None}


def _key(rank: int) -> str:
    return f"stall{rank}"
