"""Rank 0's side of the exchange: sends settings to all ranks, and combines their data into windows."""

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from perf_callbacks.kernel.clock import perf_counter, sleep
from perf_callbacks.kernel.engine.windows import GatheredWindow, JobSettings, WindowReader, with_holds
from perf_callbacks.kernel.failures import describe, guard
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.plural import MOST_RANKS
from perf_callbacks.kernel.records.codec import pack
from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.ranks.bundles import Bundle, Combination
from perf_callbacks.ranks.node import GATHER_SECONDS, FileNotes, Node
from perf_callbacks.ranks.packed_parts import unpack_bundles
from perf_callbacks.ranks.rounds import MANY, Rounds, mark, note_of_window, patience, pause, slot, slots
from perf_callbacks.ranks.store import StoreNotes

SOON_OF_MANY = 1.0
"""Wait after rank 0's own window, in a job of more than `MANY` ranks, where each look costs milliseconds."""

SELDOM_OF_MANY = 3.0
"""Factor for rank 0's pauses in such a job: its second look comes after 4 s, later than `GATHER_SECONDS`."""

SLICE_SECONDS = 0.001
"""Work of a side thread until it yields the GIL. It may hold the GIL half a millisecond longer."""

SLICE = 128
"""Bundles or ranks, of a microsecond or less, between two readings of the clock."""

GIL_YIELD_SECONDS = 0.0002
"""Between two slices of work. After a sleep of 0 s, the thread may take the GIL back before another has woken up."""

MOST_READ, MOST_BYTES = 32, 400_000
"""Notes, and bytes, of one request: while torch copied 51 MB, 32 notes of machines with 64 ranks, it held the GIL
0.1 s."""

LATE_SECONDS = 1.0
"""After a deadline, so late a first round means that rank 0 was suspended, with the store. The window then stays
open for so many seconds more."""

OWN = -1
"""Key of rank 0's own part in `_Pending.bundles`, which doesn't go through the store."""

log = logging.getLogger("perf_callbacks")


@dataclass(slots=True)
class _Pending:
    since: float
    deadline: float
    look_at: float
    bundles: dict[int, list[Bundle]] = field(default_factory=dict)
    """By source: a rank that writes bundles to the store."""
    ranks: set[int] = field(default_factory=set)
    """Of all received bundles."""
    prolonged: bool = False
    """True: the deadline was postponed, because rank 0's process was suspended."""

    def take(self, source: int, bundles: list[Bundle]) -> bool:
        """Replace a source's bundles by valid ones: its earlier ranks, one more, and none of another source."""
        ranks = [rank for bundle in bundles for rank in bundle.ranks]
        before = {rank for bundle in self.bundles.get(source, ()) for rank in bundle.ranks}
        new = {*ranks} - before
        if not new or len(ranks) != len(before) + len(new) or not self.ranks.isdisjoint(new):
            return False
        self.bundles[source] = bundles
        self.ranks |= new
        return True


class GilYield:
    """Sleeps for a moment after each slice of a side thread's work, so that the training thread gets the GIL."""

    def __init__(self) -> None:
        self._since = perf_counter()

    def __call__(self, after: float = SLICE_SECONDS) -> None:
        if perf_counter() - self._since > after:
            sleep(GIL_YIELD_SECONDS)
            self._since = perf_counter()


class Leader(Rounds):
    """Rank 0: announces the settings and combines the windows."""

    def __init__(
        self, store: Any, *, world_size: int, job_settings: JobSettings, attempt: int, node: Node | None = None
    ) -> None:
        super().__init__(store, rank=0, world_size=world_size, attempt=attempt, node=node)
        self.job_settings = self._mine = job_settings
        self.reader: Callable[[], WindowReader | None] = lambda: None
        """None: there is no reader. A reader that raises gets no more windows."""
        self._mark = mark(job_settings.fit)
        self._together = 1 if node is None else len(node.ranks)
        self._sources = [rank - rank % self._together for rank in range(world_size)]
        """The rank that writes each rank's data to the store; a guess from this machine's ranks until data arrive."""
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
            pending.take(OWN, [Bundle.from_part(part)])
            if self._relay is not None:
                self._relay.open(part.window, b"", now, deadline)
        for pending in self._pending.values():
            if now > pending.deadline + LATE_SECONDS and not pending.prolonged:
                pending.deadline, pending.prolonged = now + LATE_SECONDS, True
        for window in sorted(self._pending, reverse=True):  # newest first: ranks send older parts first
            if self._world_size <= MANY or now >= self._pending[window].look_at:
                self._read(board, window, now)
        self._close(board, now)
        self._yield_gil(after=0.0)  # `_pass_on` reads the files of this machine next
        return min([min(pending.look_at, pending.deadline) - now for pending in self._pending.values()], default=None)

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
        self._yield_gil()
        for start in range(0, len(ordered), number):
            some = ordered[start : start + number]
            blobs = board.get([slot(rank, window, self._world_size) for rank in some])
            for source, blob in zip(some, blobs, strict=True):
                bundles = [
                    bundle for bundle in unpack_bundles(blob, self._mark) if self._possible(bundle, source, window)
                ]
                if pending.take(source, bundles):
                    for rank in [rank for bundle in bundles for rank in bundle.ranks]:
                        self._sources[rank] = source
                self._yield_gil()

    def _possible(self, bundle: Bundle, source: int, window: int) -> bool:
        """Compare a bundle's ranks and steps with its source and window."""
        same_window = (bundle.window, bundle.length) == (window, self._mine.window)
        return same_window and source <= bundle.ranks[0] <= bundle.ranks[-1] < self._world_size

    def _yield_gil(self, after: float = SLICE_SECONDS) -> None:
        """In a job of more than `MANY` ranks, yield the GIL after so many seconds of work."""
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
            self._yield_gil()
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
        """`windows` is the number of windows that have ended by now."""
        combination = Combination()
        for start in range(0, len(bundles), SLICE):
            combination.add(bundles[start : start + SLICE])
            self._yield_gil()
        self._yield_gil(after=0.0)  # the figures of 4,096 ranks take a millisecond
        window: Window | None = combination.window(missing)
        self._yield_gil()
        if window is not None:
            self.latest = with_holds(window, self.latest, windows * bundles[0].length)
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
            self._yield_gil()
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
            self._yield_gil()

    def _warn(self, bundle: Bundle, missing: Sequence[int]) -> None:
        if self._warned:
            return
        self._warned = True
        shown = ", ".join(map(str, missing[:MOST_RANKS]))
        log.warning(
            "perf_callbacks: no message came from %d of %d ranks for steps %d to %d (rank %s%s). "
            "Rates of the job are left out while ranks are missing.",
            len(missing),
            self._world_size,
            bundle.first_step,
            bundle.first_step + bundle.length - 1,
            shown,
            ", …" if len(missing) > MOST_RANKS else "",
        )

    def _take_back(self, board: StoreNotes | FileNotes) -> None:
        cast("StoreNotes", board).claim("verdict", "", pack(self._mine))
