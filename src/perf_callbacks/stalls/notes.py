"""Notes that ranks write for each other about stalls, so that only one rank reports each stall.

Each rank has one note. While steps end, the rank updates its note now and then. When a stall begins, the rank updates
its note at once. If rank 0 stalls, rank 0 reads all notes and reports the stall. If rank 0 doesn't report the stall
within some seconds, for example because its process hangs, another rank reports the stall. Ranks with high numbers wait
longer before they report a stall than ranks with low numbers. The rank that reports a stall says so in a note that all
ranks share, so that no other rank reports the same stall.
"""

from collections.abc import Mapping

from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.ranks.channels import Channel, ChannelHandler
from perf_callbacks.stalls.diagnosis import LONGER, RUNNING, STALLED, Blame, Note, blame, undecided

LOOK_SECONDS = 2.0
"""Seconds between two readings of the notes by a stalled rank."""

GRACE_SECONDS = 4.0
"""In a stall, rank 0 waits up to this many seconds for other ranks to notice the stall too.

Rank 1 waits this many seconds before it examines a stall, so that rank 0 can report first. Ranks with higher numbers
wait longer: ranks 2 and 3 twice as long, and ranks 4 to 7 three times as long.
"""

BEATS = 4
"""While steps end, a rank writes this many notes in the time after which a wait counts as a stall."""

SILENT_BEATS = 1.5
"""A rank is silent if its note stays the same for `SILENT_BEATS` times the usual pause between two notes."""

NEAREST = 1
"""Ranks 0 to `NEAREST` already read all notes once when they suspect a stall. A comparison with later notes shows which
ranks are silent."""

_LOOKING, _TOLD, _OVER = "looking", "told", "over"


class StallNotes(ChannelHandler):
    """Writes this rank's note, and reads all notes in a stall.

    The thread of the exchange calls all methods except `say`.
    """

    def __init__(self) -> None:
        self._mine: Note | None = None
        self._written: Note | None = None
        self._beats = self._notices = 0
        self._patience, self._doubt = 0.0, False
        self._earlier: tuple[float, Mapping[int, str]] | None = None
        self._since: float | None = None
        self._turn = 0.0
        self._said = ""
        """Most recent text of the shared note. The text says which rank examines the stall or has reported the
        stall."""
        self.answered_at = float("-inf")
        """Time at which the job's store last answered."""
        self.told = False
        """True: this rank or another rank has reported the stall."""
        self.blamed: Blame | None = None
        """Diagnosis that this rank reports. None if another rank reports, or if no rank has reported yet."""

    def say(self, note: Note, patience: float, *, doubt: bool = False) -> None:
        """Set the note of this rank.

        `doubt` is True if half of the time has passed after which the current wait counts as a stall.
        """
        self._patience, self._doubt = patience, doubt
        self._mine = note

    def round(self, channel: Channel, now: float) -> float | None:
        """Write this rank's note if it is new. In a stall, read the notes of all ranks.

        Return the seconds until the next round. None means that the next round begins when this rank has a new note.
        """
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
        """Write the last note, which says that the fit of this rank is over."""
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
        """Diagnose the stall, unless another rank reports the stall first."""
        if self.told:
            return None
        if self._since is None:
            self._since = self._turn = now
        said = channel.shared()
        if said.endswith(_TOLD):
            self._said, self.told = said, True
            return None
        if said != self._said:  # another rank examines the stall
            self._said, self._turn = said, now
        if not channel.reads_all or now - self._turn < GRACE_SECONDS * channel.rank.bit_length():
            return LOOK_SECONDS  # another rank of this machine reads the notes, or a lower rank may report
        if self._earlier is None:
            self._earlier = (now, channel.notes())
        self._judge(channel, now, now - self._since)
        return None if self.told else LOOK_SECONDS

    def _judge(self, channel: Channel, now: float, waited: float) -> None:
        """Diagnose the stall, or postpone the diagnosis if the notes don't show yet which ranks cause the stall."""
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
