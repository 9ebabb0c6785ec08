"""Notes that ranks write for each other about stalls, so that only one rank reports each stall.

Rank 0 reads all notes and reports; if it hangs, others do some seconds later, low numbers first, as a shared note says.
"""

from collections.abc import Mapping

from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.ranks.channels import Channel, ChannelHandler
from perf_callbacks.stalls.diagnosis import LONGER, RUNNING, STALLED, Blame, Note, blame, undecided

LOOK_SECONDS = 2.0
"""Between two readings of the notes by a stalled rank."""

GRACE_SECONDS = 4.0
"""So long rank 0 waits for others to notice a stall, and rank 1 for rank 0; ranks 2 and 3 twice, 4 to 7 three times."""

BEATS = 4
"""Notes in the time after which a wait counts as a stall."""

SILENT_BEATS = 1.5
"""Usual pauses between two notes after which a rank is silent."""

NEAREST = 1
"""Ranks up to this one read all notes when they suspect a stall: later notes then show which ranks are silent."""

_LOOKING, _TOLD, _OVER = "looking", "told", "over"


class StallNotes(ChannelHandler):
    """Writes this rank's note, and reads all notes in a stall. Only `say` runs outside of the exchange's thread."""

    def __init__(self) -> None:
        self._mine: Note | None = None
        self._written: Note | None = None
        self._beats = self._notices = 0
        self._patience, self._doubt = 0.0, False
        self._earlier: tuple[float, Mapping[int, str]] | None = None
        self._since: float | None = None
        self._turn = 0.0
        self._said = ""
        """The shared note, which says which rank examines the stall or has reported it."""
        self.answered_at = float("-inf")
        """The last answer of the job's store."""
        self.told = False
        """True: this rank or another has reported the stall."""
        self.blamed: Blame | None = None
        """Diagnosis that this rank reports. None: another rank reports, or none has yet."""

    def say(self, note: Note, patience: float, *, doubt: bool = False) -> None:
        """`doubt`: half of the time has passed after which the current wait counts as a stall."""
        self._patience, self._doubt = patience, doubt
        self._mine = note

    def round(self, channel: Channel, now: float) -> float | None:
        """Write a new note; in a stall, read all. Return the seconds until the next round; None: with the next note."""
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
        """The last note says that the fit of this rank is over."""
        if self._mine is not None:
            self._write(channel, self._mine)

    def _write(self, channel: Channel, mine: Note) -> None:
        if mine is not self._written:
            self._beats += 1  # so that only the note of a silent rank stays the same
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
        """Diagnose the stall, unless another rank reports it first."""
        if self.told:
            return None
        if self._since is None:
            self._since = self._turn = now
        note = channel.shared()
        if note.endswith(_TOLD):
            self._said, self.told = note, True
            return None
        if note != self._said:  # another rank examines the stall
            self._said, self._turn = note, now
        if not channel.reads_all or now - self._turn < GRACE_SECONDS * channel.rank.bit_length():
            return LOOK_SECONDS  # another rank of this machine reads the notes, or a lower rank may report
        if self._earlier is None:
            self._earlier = (now, channel.notes())
        self._judge(channel, now, now - self._since)
        return None if self.told else LOOK_SECONDS

    def _judge(self, channel: Channel, now: float, waited: float) -> None:
        """Diagnose the stall, or later if the notes don't show yet which ranks cause it."""
        before, earlier = self._earlier or (now, {})
        texts = channel.notes()
        decoded = {rank: unpack(Note, text.partition("\n")[2]) for rank, text in texts.items()}
        notes = {rank: note for rank, note in decoded.items() if note is not None}
        later = [rank for rank in range(channel.world_size) if rank not in notes or notes[rank].state == RUNNING]
        early = waited < GRACE_SECONDS or now - before < SILENT_BEATS * self._patience / BEATS
        silent = {rank for rank in later if rank in notes and texts[rank] == earlier.get(rank)}
        if waited < (LONGER - 1) * self._patience:  # in a checkpoint a note may stay the same for longer
            silent = {rank for rank in silent if not notes[rank].spanned}
        if (later and early) or undecided(notes, silent):
            self._notices += 1
            self._said = f"{channel.rank} {_LOOKING} {self._notices}"
            channel.share(self._said)
        elif channel.claim(f"{channel.rank} {_TOLD}"):
            self.blamed = blame(notes, silent, channel.world_size)
            self.told = True
