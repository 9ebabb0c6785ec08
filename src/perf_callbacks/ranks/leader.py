"""Rank 0's side of the exchange: settings for all ranks, and windows put together from the parts of all ranks."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from perf_callbacks.core.codec import pack
from perf_callbacks.core.packed_parts import FRAME, unpack_parts
from perf_callbacks.core.records import Window
from perf_callbacks.core.windows import Combination, GatheredWindow, Part, Verdict, hold
from perf_callbacks.ranks.node import GATHER_SECONDS, Folder, Node
from perf_callbacks.ranks.rounds import MANY, SOON, Rounds, mark, note_of_window, patience, pause, slot, slots
from perf_callbacks.ranks.store import Board

SOON_OF_MANY = 1.0
"""Seconds until parts of more than `MANY` ranks are looked for: each look costs rank 0 milliseconds."""

SLICE = 128
"""Parts that are handled at once: well under 2 ms. Then the training thread may have the GIL."""

BREATH_SECONDS = 0.0002
"""Seconds between two slices. A sleep of 0 may take the GIL back before a waiting thread has woken up."""

MOST_READ = 32
"""Most notes that are read at once."""

MOST_SHOWN = 8
"""Most missing ranks that the message names."""

Analyse = Callable[[GatheredWindow], None]
"""Analyses a window. Called in the side thread of rank 0, once per window, in order. In a job of many ranks, the parts
are gone once it returns."""

log = logging.getLogger("perf_callbacks")


@dataclass(slots=True)
class _Pending:
    """A window that isn't over for rank 0."""

    since: float
    deadline: float
    look_at: float
    parts: dict[int, Part]
    read: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Length and first bytes of the last note of each source: where they are the same, nothing was added."""


class Leader(Rounds):
    """Rank 0: announces the settings and combines the windows."""

    def __init__(
        self, store: Any, *, world_size: int, verdict: Verdict, attempt: int = 0, node: Node | None = None
    ) -> None:
        super().__init__(store, rank=0, world_size=world_size, attempt=attempt, node=node)
        self.verdict = self._mine = verdict
        self.analyse: Analyse | None = None
        """Analysis of the windows, if there is one. An error ends it, and not the exchange."""
        self._mark = mark(verdict.fit)
        together = 1 if node is None else len(node.ranks)
        self._sources = [rank - rank % together for rank in range(world_size)]
        """The rank under whose key each rank's part lies: as if all machines were like this one, until a part tells."""
        self._said = self._warned = False
        self._handled = 0  # parts since the last breath
        self._pending: dict[int, _Pending] = {}
        self.agreed.set()

    def _round(self, board: Board | Folder, now: float) -> float | None:
        board = cast("Board", board)  # rank 0 is the first rank of its machine
        if not self._said:
            # Reading keys that are all there is one call. Finding those that are there costs a call per silent rank.
            first = 1 if self._node is None else 0
            ranks = range(first, self._world_size) if self._mine.window is not None else ()
            kept = range(slots(self._world_size))
            board.make(["window", *[slot(rank, window, self._world_size) for window in kept for rank in ranks]])
        if self.offers or not self._said:  # again with each window: a fit within this one may have had its own
            board.write("verdict", pack(self._mine))
            self._said = True
        for part in self._drained(self._mine.window or 0):
            deadline = now + patience(part)
            self._pending[part.window] = _Pending(now, deadline, now + SOON_OF_MANY, {0: part})
            if self._relay is not None:
                self._relay.open(part.window, b"", now, deadline)
        for window in sorted(self._pending, reverse=True):  # a rank sends in order: what came late is found below
            if self._world_size <= MANY or now >= self._pending[window].look_at:
                self._read(board, window, now)
        self._close(board, now)
        return min([min(one.look_at, one.deadline) - now for one in self._pending.values()], default=None)

    def _read(self, board: Board, window: int, now: float) -> None:
        """Read the parts of a window that haven't come yet."""
        pending = self._pending[window]
        soon = SOON if self._world_size <= MANY else SOON_OF_MANY
        pending.look_at = min(now + pause(now - pending.since, soon), max(now, pending.deadline))
        missing = [rank for rank in range(self._world_size) if rank not in pending.parts]
        sources = {self._sources[rank] for rank in missing}
        if now - pending.since > GATHER_SECONDS:  # they may talk for themselves, or for a machine of another size
            sources.update(missing)
        ordered = sorted(sources)
        for start in range(0, len(ordered), MOST_READ):
            some = ordered[start : start + MOST_READ]
            blobs = board.get([slot(rank, window, self._world_size) for rank in some])
            for source, blob in zip(some, blobs, strict=True):
                seen = (len(blob), blob[:FRAME])  # with the checksum of the first part
                if pending.read.get(source) == seen:
                    continue
                pending.read[source] = seen
                parts = unpack_parts(blob, self._mark)
                self._breathe(len(parts))
                for part in parts:
                    known = (part.window, part.length) == (window, self._mine.window)
                    if known and source <= part.rank < self._world_size:
                        pending.parts.setdefault(part.rank, part)
                        self._sources[part.rank] = source

    def _breathe(self, handled: int) -> None:
        """Let other threads have the GIL after some parts. A job of few ranks has no use for it."""
        self._handled += handled
        if self._handled >= SLICE and self._world_size > MANY:
            time.sleep(BREATH_SECONDS)
            self._handled = 0

    def _close(self, board: Board, now: float) -> None:
        """Close windows that are complete, that are over their deadline, or whose parts are being overwritten."""
        windows = sorted(self._pending)
        over = [window for window in windows if len(self._pending[window].parts) == self._world_size]
        over += windows[: -slots(self._world_size)]
        late = [window for window in windows if now >= self._pending[window].deadline]
        closing = [window for window in windows if window <= max([*over, *late], default=-1)]
        before, gathered = self.latest, []
        for window in closing:
            parts = self._pending.pop(window).parts
            missing = tuple([rank for rank in range(self._world_size) if rank not in parts])
            self._combine(list(parts.values()), missing, windows[-1] + 1)
            steps = parts[0].length
            one = GatheredWindow(first_step=window * steps + 1, steps=steps, parts=parts, missing=missing)
            gathered.append((one, parts))
            if missing and window in late:
                self._warn(one)
        if self.latest is not None and self.latest is not before:
            board.write("window", note_of_window(self._mine.fit, self.latest))
        for one, parts in gathered:
            self._analyse(one)
            while self._world_size > MANY and parts:  # freeing thousands at once takes milliseconds too
                for rank in [*parts][:SLICE]:
                    del parts[rank]
                self._breathe(SLICE)

    def _combine(self, parts: Sequence[Part], missing: Sequence[int], windows: int) -> None:
        """Put the parts of a window together. So many windows are over by now."""
        combination = Combination()
        for start in range(0, len(parts), SLICE):
            combination.add(parts[start : start + SLICE])
            self._breathe(SLICE)
        window: Window | None = combination.window(missing)
        if window is not None:
            self.latest = hold(window, self.latest, windows * parts[0].length)
            self.finished.append(self.latest)

    def _analyse(self, window: GatheredWindow) -> None:
        if self.analyse is None:
            return
        try:
            self.analyse(window)
        except Exception as error:
            self.analyse = None
            log.warning(
                "perf_callbacks: slow ranks are looked for no more, training goes on: %s", error, exc_info=error
            )

    def _warn(self, window: GatheredWindow) -> None:
        """Say once that ranks are missing."""
        if self._warned:
            return
        self._warned = True
        shown = ", ".join(map(str, window.missing[:MOST_SHOWN]))
        log.warning(
            "perf_callbacks: nothing came from %d of %d ranks for steps %d to %d (rank %s%s). "
            "Rates of the job are left out while ranks are missing.",
            len(window.missing),
            self._world_size,
            window.first_step,
            window.first_step + window.steps - 1,
            shown,
            ", …" if len(window.missing) > MOST_SHOWN else "",
        )

    def _take_back(self, board: Board | Folder) -> None:
        cast("Board", board).replace("verdict", pack(self._mine), "")
