"""Rank 0's side of the exchange: sends settings to all ranks, and combines the data of all ranks into windows."""

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from perf_callbacks.kernel.clock import perf_counter, sleep
from perf_callbacks.kernel.engine.windows import GatheredWindow, JobSettings, WindowReader, hold
from perf_callbacks.kernel.failures import describe, guard
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.ranks.bundles import Bundle, Combination
from perf_callbacks.ranks.node import GATHER_SECONDS, FileNotes, Node
from perf_callbacks.ranks.packed_parts import unpack_bundles
from perf_callbacks.ranks.rounds import MANY, Rounds, mark, note_of_window, patience, pause, slot, slots
from perf_callbacks.ranks.store import StoreNotes

SOON_OF_MANY = 1.0
"""In a job of more than `MANY` ranks, rank 0 waits this many seconds after the end of its own window before it looks
for other ranks' data. In a job of so many ranks, each look costs milliseconds."""

SELDOM_OF_MANY = 3.0
"""Factor for the pauses of rank 0 in a job of more than `MANY` ranks. If rank 0 has waited 1 s for missing data, it
pauses for 3 s before it looks again. Rank 0's second look comes after 4 s, later than `GATHER_SECONDS`."""

SLICE_SECONDS = 0.001
"""Seconds of work after which a side thread yields the GIL to training. The side thread may hold the GIL half a
millisecond longer than `SLICE_SECONDS`."""

SLICE = 128
"""Number of bundles or ranks between two readings of the clock, where each takes a microsecond or less."""

BREATH_SECONDS = 0.0002
"""Seconds between two slices of work. After a sleep of 0 s, the thread may take the GIL back before a waiting thread
has woken up."""

MOST_READ, MOST_BYTES = 32, 400_000
"""Limits of a request: at most `MOST_READ` notes, with at most `MOST_BYTES` bytes of signals. The thread holds the GIL
while torch copies an answer. An answer of 51 MB, such as 32 notes of machines with 64 ranks, held the GIL for 0.1 s."""

LATE_SECONDS = 1.0
"""If rank 0's first round after a deadline comes more than this many seconds late, rank 0's process was suspended. The
store was suspended too, because rank 0's process serves the store. After a suspension, rank 0 keeps the window open for
`LATE_SECONDS` more, so that delayed notes of other ranks arrive."""

MOST_SHOWN = 8
"""Largest number of missing ranks that the warning names."""

OWN = -1
"""Key of rank 0's own part in `_Pending.bundles`. Rank 0's own part doesn't go through the store."""

log = logging.getLogger("perf_callbacks")


@dataclass(slots=True)
class _Pending:
    """A window that rank 0 has not closed yet."""

    since: float
    deadline: float
    look_at: float
    bundles: dict[int, list[Bundle]] = field(default_factory=dict)
    """Bundles received so far from each source. A source is a rank that writes bundles to the store."""
    ranks: set[int] = field(default_factory=set)
    """Ranks of all received bundles."""
    prolonged: bool = False
    """True: the deadline was postponed, because rank 0's process was suspended."""

    def take(self, source: int, bundles: list[Bundle]) -> bool:
        """If the new bundles are valid, replace the bundles of a source, and return True. Else return False.

        Bundles are valid if they contain all ranks of the source's previous bundles, and at least one more rank.
        Bundles with a rank of another source are not valid.
        """
        ranks = [rank for bundle in bundles for rank in bundle.ranks]
        before = {rank for bundle in self.bundles.get(source, ()) for rank in bundle.ranks}
        new = {*ranks} - before
        if not new or len(ranks) != len(before) + len(new) or not self.ranks.isdisjoint(new):
            return False
        self.bundles[source] = bundles
        self.ranks |= new
        return True


class GilYield:
    """Sleeps for a moment after each slice of the work of a side thread, so that the training thread gets the GIL."""

    def __init__(self) -> None:
        self._since = perf_counter()

    def __call__(self, after: float = SLICE_SECONDS) -> None:
        """Sleep if this thread has worked for more than `after` seconds."""
        if perf_counter() - self._since > after:
            sleep(BREATH_SECONDS)
            self._since = perf_counter()


class Leader(Rounds):
    """Rank 0: announces the settings and combines the windows."""

    def __init__(
        self, store: Any, *, world_size: int, job_settings: JobSettings, attempt: int = 0, node: Node | None = None
    ) -> None:
        super().__init__(store, rank=0, world_size=world_size, attempt=attempt, node=node)
        self.job_settings = self._mine = job_settings
        self.reader: Callable[[], WindowReader | None] = lambda: None
        """Return the reader of the windows, or None without a reader. A reader that raises gets no more windows."""
        self._mark = mark(job_settings.fit)
        self._together = 1 if node is None else len(node.ranks)
        self._sources = [rank - rank % self._together for rank in range(world_size)]
        """Entry r is the rank that writes the data of rank r to the store. Until data arrive, the entry is guessed from
        the number of ranks on this machine."""
        self._said = self._warned = False
        self._yield = GilYield()
        self._pending: dict[int, _Pending] = {}
        self.agreed.set()

    def _round(self, board: StoreNotes | FileNotes, now: float) -> float | None:
        board = cast("StoreNotes", board)  # rank 0 is the first rank of its machine
        self._yield = GilYield()
        if not self._said:
            # If all keys exist, one call reads them. Finding out which keys exist costs a call per silent rank.
            first = 1 if self._node is None else 0
            ranks = range(first, self._world_size) if self._mine.window is not None else ()
            kept = range(slots(self._world_size))
            keys = ["window", *[slot(rank, window, self._world_size) for window in kept for rank in ranks]]
            board.write_all(dict.fromkeys(keys, ""))
        if self.offers or not self._said:  # again with each window: a nested fit may have replaced the note
            board.write("verdict", pack(self._mine))
            self._said = True
        for part in self._drained(self._mine.window or 0):
            deadline = now + patience(part)
            pending = self._pending[part.window] = _Pending(now, deadline, now + SOON_OF_MANY)
            pending.take(OWN, [Bundle.of(part)])
            if self._relay is not None:
                self._relay.open(part.window, b"", now, deadline)
        for pending in self._pending.values():
            if now > pending.deadline + LATE_SECONDS and not pending.prolonged:
                pending.deadline, pending.prolonged = now + LATE_SECONDS, True
        for window in sorted(self._pending, reverse=True):  # newest first: ranks send older parts first
            if self._world_size <= MANY or now >= self._pending[window].look_at:
                self._read(board, window, now)
        self._close(board, now)
        self._breathe(after=0.0)  # `_pass_on` reads the files of this machine next
        return min([min(one.look_at, one.deadline) - now for one in self._pending.values()], default=None)

    def _read(self, board: StoreNotes, window: int, now: float) -> None:
        """Read those data of a window that have not arrived yet."""
        pending = self._pending[window]
        waited = now - pending.since
        next_look = pause(waited) if self._world_size <= MANY else pause(SELDOM_OF_MANY * waited, SOON_OF_MANY)
        pending.look_at = min(now + next_look, max(now, pending.deadline))
        missing = [rank for rank in range(self._world_size) if rank not in pending.ranks]
        sources = {self._sources[rank] for rank in missing}
        if waited > GATHER_SECONDS:  # a missing rank may talk for itself, or for a machine of another size
            sources.update(missing)
        ordered = sorted(sources)
        size = 4 * len(pending.bundles[OWN][0].columns) * self._together
        number = max(1, min(MOST_READ, MOST_BYTES // max(1, size)))
        self._breathe()
        for start in range(0, len(ordered), number):
            some = ordered[start : start + number]
            blobs = board.get([slot(rank, window, self._world_size) for rank in some])
            for source, blob in zip(some, blobs, strict=True):
                bundles = [one for one in unpack_bundles(blob, self._mark) if self._possible(one, source, window)]
                if pending.take(source, bundles):
                    for rank in [rank for bundle in bundles for rank in bundle.ranks]:
                        self._sources[rank] = source
                self._breathe()

    def _possible(self, bundle: Bundle, source: int, window: int) -> bool:
        """Return True if a bundle's ranks and steps match its source and window."""
        known = (bundle.window, bundle.length) == (window, self._mine.window)
        return known and source <= bundle.ranks[0] <= bundle.ranks[-1] < self._world_size

    def _breathe(self, after: float = SLICE_SECONDS) -> None:
        """In a job of more than `MANY` ranks, yield the GIL if this thread has worked for `after` seconds."""
        if self._world_size > MANY:
            self._yield(after)

    def _close(self, board: StoreNotes, now: float) -> None:
        """Close windows that are complete, past their deadline, or about to be overwritten in the store."""
        windows = sorted(self._pending)
        over = [window for window in windows if len(self._pending[window].ranks) == self._world_size]
        over += windows[: -slots(self._world_size)]
        late = [window for window in windows if now >= self._pending[window].deadline]
        closing = [window for window in windows if window <= max([*over, *late], default=-1)]
        before, closed = self.latest, []
        for window in closing:
            pending = self._pending.pop(window)
            bundles = [bundle for bundles in pending.bundles.values() for bundle in bundles]
            pending.bundles.clear()
            missing = tuple([rank for rank in range(self._world_size) if rank not in pending.ranks])
            closed.append((bundles, missing))
            self._breathe()
            self._combine(bundles, missing, windows[-1] + 1)
            if missing and window in late:
                self._warn(bundles[0], missing)
        if self.latest is not None and self.latest is not before:
            note = replace(self.latest, job={}, by_rank={})  # rank 0 alone logs and records these
            board.write("window", note_of_window(self._mine.fit, note))
        for bundles, missing in closed:
            self._show(bundles, missing)
            self._free(bundles)

    def _combine(self, bundles: Sequence[Bundle], missing: Sequence[int], windows: int) -> None:
        """Combine the bundles of a window. `windows` is the number of windows that have ended by now."""
        combination = Combination()
        for start in range(0, len(bundles), SLICE):
            combination.add(bundles[start : start + SLICE])
            self._breathe()
        self._breathe(after=0.0)  # the figures of 4,096 ranks take a millisecond
        window: Window | None = combination.window(missing)
        self._breathe()
        if window is not None:
            self.latest = hold(window, self.latest, windows * bundles[0].length)
            self.finished.append(self.latest)

    def _show(self, bundles: Sequence[Bundle], missing: tuple[int, ...]) -> None:
        reader = self.reader()
        if reader is None:
            return
        signals: dict[int, Mapping[str, array[float]]] = {}
        roles: dict[int, Mapping[str, int]] = {}
        for bundle in bundles if len(missing) < self._world_size - 1 else ():
            signals.update(bundle.signals())
            roles.update(bundle.roles())
            self._breathe()
        first, steps = bundles[0].first_step, bundles[0].length
        with guard(self._stop_reading):
            reader(GatheredWindow(first_step=first, steps=steps, signals=signals, roles=roles))
        del reader
        held = [*signals.values()]
        del signals
        self._free(held)

    def _stop_reading(self, error: Exception) -> None:
        let_pass(error)
        self.reader = lambda: None
        message = "perf_callbacks: the windows of the ranks are no longer compared, training goes on: %s"
        log.warning(message, describe(error), exc_info=error)

    def _free(self, held: list[Any]) -> None:
        """Empty a list in slices: freeing the signals of thousands of ranks takes milliseconds."""
        while held:
            del held[-SLICE:]
            self._breathe()

    def _warn(self, bundle: Bundle, missing: Sequence[int]) -> None:
        """Log once that ranks are missing from a window."""
        if self._warned:
            return
        self._warned = True
        shown = ", ".join(map(str, missing[:MOST_SHOWN]))
        log.warning(
            "perf_callbacks: no message came from %d of %d ranks for steps %d to %d (rank %s%s). "
            "Rates of the job are left out while ranks are missing.",
            len(missing),
            self._world_size,
            bundle.first_step,
            bundle.first_step + bundle.length - 1,
            shown,
            ", …" if len(missing) > MOST_SHOWN else "",
        )

    def _take_back(self, board: StoreNotes | FileNotes) -> None:
        cast("StoreNotes", board).claim("verdict", "", pack(self._mine))
