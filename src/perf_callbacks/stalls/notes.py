"""Notes that ranks leave for each other about stalls, so that one rank tells of all.

Each rank has one note, written now and then while steps end, and at once when they stop ending. Rank 0 reads all notes
when it stalls, and tells. If it does not, as its process hangs or its own steps go on, the next rank tells: each rank
waits a little longer than those below. The shared note says that a rank has told, so that nothing is told twice.
"""

from collections.abc import Mapping

from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.ranks.channels import Channel, ChannelHandler
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


class StallNotes(ChannelHandler):
    """One rank's side of it. `say` is for the watch, the rest for the thread that talks with the store."""

    def __init__(self) -> None:
        self._mine: Note | None = None
        self._written: Note | None = None
        self._beats = self._looks = 0
        self._patience, self._doubt = 0.0, False
        self._notes: dict[str, Note | None] = {}
        self._earlier: tuple[float, Mapping[int, str]] | None = None
        self._since: float | None = None
        self._turn = 0.0
        self._said = ""
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

    def round(self, channel: Channel, now: float) -> float | None:
        """Do what is to be done now. Return the seconds until the next round; None: until there is a new note."""
        mine, pause = self._mine, None
        if mine is None:
            return None
        self._write(channel, mine)
        if mine.state == STALLED:
            pause = self._stalled(channel, now)
        else:
            self._well(channel, now)
        self.answered_at = now
        return pause

    def leave(self, channel: Channel) -> None:
        """Say that the fit of this rank is over."""
        if self._mine is not None:
            self._write(channel, self._mine)

    def _write(self, channel: Channel, mine: Note) -> None:
        if mine is not self._written:
            self._beats += 1  # so that a rank whose note stays the same is one that says nothing
            channel.put(f"{self._beats}\n{pack(mine)}")
            self._written = mine

    def _well(self, channel: Channel, now: float) -> None:
        if self.blamed is not None:
            channel.share(f"{channel.rank} {_OVER}")
        self._since, self.told, self.blamed, self._said = None, False, None, ""
        channel.forget()
        if not self._doubt:
            self._earlier = None
        elif self._earlier is None and channel.rank <= NEAREST and channel.reads_all:
            self._earlier = (now, channel.notes())

    def _stalled(self, channel: Channel, now: float) -> float | None:
        """Wait for a lower rank to tell, then look at the notes."""
        if self.told:
            return None
        if self._since is None:
            self._since = self._turn = now
        said = channel.shared()
        if said.endswith(_TOLD):
            self._said, self.told = said, True
            return None
        if said != self._said:  # another rank is looking
            self._said, self._turn = said, now
        if not channel.reads_all or now - self._turn < GRACE_SECONDS * channel.rank.bit_length():
            return LOOK_SECONDS  # notes of other machines are read by the rank that talks for this one
        if self._earlier is None:
            self._earlier = (now, channel.notes())
        self._judge(channel, now, now - self._since)
        return None if self.told else LOOK_SECONDS

    def _judge(self, channel: Channel, now: float, waited: float) -> None:
        """Tell, unless it is too early to know who is silent, or the others may be waiting for a checkpoint."""
        before, earlier = self._earlier or (now, {})
        texts = channel.notes()
        notes = self._decoded(texts)
        later = [rank for rank in range(channel.world_size) if rank not in notes or notes[rank].state == RUNNING]
        early = waited < GRACE_SECONDS or now - before < SILENT_BEATS * self._patience / BEATS
        silent = {rank for rank in later if rank in notes and texts[rank] == earlier.get(rank)}
        if waited < (LONGER - 1) * self._patience:  # in a checkpoint a note may stay the same for longer
            silent = {rank for rank in silent if not notes[rank].spanned}
        if (later and early) or undecided(notes, silent):
            self._looks += 1
            self._said = f"{channel.rank} {_LOOKING} {self._looks}"
            channel.share(self._said)
        elif channel.claim(f"{channel.rank} {_TOLD}"):
            self.blamed = blame(notes, silent, channel.world_size)
            self.told = True

    def _decoded(self, texts: Mapping[int, str]) -> dict[int, Note]:
        """Decode notes. Thousands of ranks wait in few places, so most notes are equal and decoded once."""
        bodies = {rank: text.partition("\n")[2] for rank, text in texts.items()}
        for body in {*bodies.values()} - {*self._notes}:
            self._notes[body] = unpack(Note, body)
        decoded = {rank: self._notes[body] for rank, body in bodies.items()}
        self._notes = {body: self._notes[body] for body in {*bodies.values()}}
        return {rank: note for rank, note in decoded.items() if note is not None}
