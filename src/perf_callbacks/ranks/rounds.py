"""Messages between ranks, one round at a time: rank 0's settings, each rank's parts, complete windows.

Nothing here waits or reads a clock: a round does what is possible now and returns when the next one is due.
"""

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from perf_callbacks.core.codec import pack, unpack
from perf_callbacks.core.records import Window
from perf_callbacks.core.windows import Part, Verdict, combine, hold
from perf_callbacks.ranks.stalls import StallNotes
from perf_callbacks.ranks.store import Board

KEPT = 8
"""Most incomplete windows that are kept. A rank that is further behind keeps them from becoming complete."""

FINISHED = 64
"""Most complete windows that wait to be taken."""

SOON = 0.1
"""Seconds until missing notes are looked for again. Each further pause is as long as the wait so far…"""

SELDOM = 30.0
"""…up to this many seconds."""

EARLY = 0.01
"""Like `SOON`, for the settings that training waits for. These pauses are an eighth of the wait so far."""

log = logging.getLogger("perf_callbacks")

_obeyed: dict[int, str] = {}  # settings of the fit that each rank of this process last obeyed


class Rounds:
    """One rank's side of the exchange in one fit. An error ends the exchange, and nothing else."""

    def __init__(self, store: Any, *, rank: int, world_size: int) -> None:
        self._store = store  # held because rank 0 may serve it: it must not end before the exchange does
        self._board: Board | None = None
        self._rank = rank
        self._world_size = world_size
        self.offers: deque[Part] = deque(maxlen=KEPT)
        """Parts of this rank that were not sent yet."""
        self.finished: deque[Window] = deque(maxlen=FINISHED)
        """Complete windows, on rank 0."""
        self.verdict: Verdict | None = None
        self.latest: Window | None = None
        self.failure: str | None = None
        self.stalls = StallNotes(rank, world_size)
        self.agreed = threading.Event()
        """There is a verdict, or none to wait for."""

    def step(self, now: float) -> float | None:
        """Run one round. Return the seconds until the next one; None: until the next offer."""
        if self.failure is not None:
            return None
        try:
            if self._board is None:
                self._board = Board(self._store)
            fit = self.verdict.fit if self.verdict is not None and self.verdict.window is not None else None
            soon = self.stalls.round(self._board, fit, now) if fit is not None else None
            pauses = [pause for pause in (soon, self._round(self._board, now)) if pause is not None]
            return min(pauses, default=None)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.failure = f"{type(error).__name__}: {error}".partition("\n")[0]
            return None

    def _round(self, board: Board, now: float) -> float | None:
        raise NotImplementedError

    def leave(self, *, politely: bool = True) -> None:
        """Release the store. Politely: first take back notes that no longer hold, which is one more call."""
        try:
            if self._board is not None and self.failure is None and politely:
                if self.verdict is not None:
                    self.stalls.leave(self._board, self.verdict.fit)
                self._take_back(self._board)
        except Exception:  # noqa: BLE001, S110 the store may be gone
            pass
        finally:
            self._board = None
            self._store = None
            self.agreed.set()

    def _take_back(self, board: Board) -> None:
        """Take back notes; a rank that only sends parts has none."""

    def _drained(self, window: int) -> Iterator[Part]:
        """Take the parts offered since the last round, for windows of that length."""
        while self.offers:
            part = self.offers.popleft()
            if part.length == window:
                yield dataclasses.replace(part, useful_tokens=_settled(part.useful_tokens))


class Leader(Rounds):
    """Rank 0: announces the settings and combines the windows."""

    def __init__(self, store: Any, *, world_size: int, verdict: Verdict) -> None:
        super().__init__(store, rank=0, world_size=world_size)
        self.verdict = self._mine = verdict
        self._said = False
        self._pending: dict[int, dict[int, Part]] = {}
        self._since = 0.0
        self.agreed.set()

    def _round(self, board: Board, now: float) -> float | None:
        if self.offers or not self._said:  # again with each window: a fit within this one may have had its own
            board.write("verdict", pack(self._mine))
            self._said = True
        for part in self._drained(self._mine.window or 0):
            self._pending[part.window] = {part.rank: part}
            self._since = now
        for window in sorted(self._pending)[:-KEPT]:
            del self._pending[window]
        if self._pending:
            self._look(board)
        return _pause(now - self._since) if self._pending else None

    def _look(self, board: Board) -> None:
        """Read new parts, and combine the windows that they complete."""
        ranks = range(self._world_size)
        missing = [rank for rank in ranks if any([rank not in parts for parts in self._pending.values()])]
        for rank, note in zip(missing, board.read(*[_key(rank) for rank in missing]), strict=False):
            parts = [unpack(Part, line) for line in _lines(note, self._mine.fit)]
            for part in [part for part in parts if part is not None and part.rank == rank]:
                self._pending.get(part.window, {}).setdefault(rank, part)
        complete = sorted([window for window, parts in self._pending.items() if len(parts) == self._world_size])
        windows = [combine(self._pending[window].values()) for window in complete]
        # Every rank sends its parts in order, so older incomplete windows will stay incomplete.
        self._pending = {window: parts for window, parts in self._pending.items() if window > max(complete, default=-1)}
        for window in [window for window in windows if window is not None]:
            self.latest = hold(window, self.latest)
            self.finished.append(self.latest)
        if any(windows) and self.latest is not None:
            board.write("window", _note(self._mine.fit, pack(self.latest)))

    def _take_back(self, board: Board) -> None:
        board.replace("verdict", pack(self._mine), "")


class Follower(Rounds):
    """Any other rank: follows rank 0's settings, however late they arrive, and sends its parts.

    Settings that this process obeyed before belong to an earlier fit. Rank 0 may not have removed the settings of an
    earlier fit in which this process had no part. They are then taken for the current ones until those arrive, which
    happens before the first window is sent.
    """

    def __init__(self, store: Any, *, rank: int, world_size: int) -> None:
        super().__init__(store, rank=rank, world_size=world_size)
        self._earlier = _obeyed.get(rank)
        self._began: float | None = None
        self._since = 0.0
        self._sent: deque[str] = deque(maxlen=KEPT)
        self._awaited = 0

    def _round(self, board: Board, now: float) -> float | None:
        self._began = now if self._began is None else self._began
        if self.offers or self.verdict is None or self.verdict.window is None:
            self._obey(board)
        if self.verdict is None or self.verdict.window is None:
            return _pause((now - self._began) / 8, EARLY)
        parts = list(self._drained(self.verdict.window))
        if parts:
            self._sent += map(pack, parts)
            board.write(_key(self._rank), _note(self.verdict.fit, *self._sent))
            self._awaited, self._since = (parts[-1].window + 1) * parts[-1].length, now
        known = self.latest.last_step if self.latest is not None else 0
        if self._awaited > known:
            known = self._fetch(board, self.verdict.fit, known)
        return _pause(now - self._since) if self._awaited > known else None

    def _obey(self, board: Board) -> None:
        for note in board.read("verdict"):
            verdict = unpack(Verdict, note)
            held = self.verdict.fit if self.verdict is not None else None
            if verdict is not None and verdict.fit not in {self._earlier, held}:
                self.verdict = verdict
                _obeyed[self._rank] = verdict.fit
                self._sent.clear()
                self.agreed.set()

    def _fetch(self, board: Board, fit: str, known: int) -> int:
        """Read the newest window and return the last step that is known then."""
        for note in board.read("window"):
            for window in [unpack(Window, line) for line in _lines(note, fit)]:
                if window is not None and window.last_step > known:
                    self.latest = window
                    return window.last_step
        return known


def _settled(amount: Any) -> int | None:
    """Return a number that a device may still be computing, after waiting for it."""
    try:
        return None if amount is None else int(amount)
    except Exception:  # noqa: BLE001 a device may raise anything
        return None


def _pause(waited: float, least: float = SOON) -> float:
    return min(max(least, waited), SELDOM)


def _key(rank: int) -> str:
    return f"rank{rank}"


def _note(fit: str, *lines: str) -> str:
    return "\n".join([fit, *lines])


def _lines(note: str, fit: str) -> list[str]:
    """Return the lines of a note, if it belongs to that fit."""
    first, *lines = note.split("\n")
    return lines if first == fit else []
