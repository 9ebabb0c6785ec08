"""What ranks say to each other, one round at a time: what holds, what each did in a window, what all did together.

Nothing here waits or knows a clock: a round does what there is to do now and says when the next is due.
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
from perf_callbacks.ranks.store import Board

KEPT = 8
"""Windows that may be under way. A rank that is further behind than that keeps them from becoming complete."""

FINISHED = 64
"""Complete windows that may wait to be taken."""

SOON = 0.1
"""Seconds until a second look for what was not there. Each further pause is as long as the wait so far…"""

SELDOM = 30.0
"""…until it has grown to this."""

EARLY = 0.01
"""As `SOON`, for the verdict, which training waits for. Here pauses are an eighth of the wait so far."""

log = logging.getLogger("perf_callbacks")

_obeyed: dict[int, str] = {}  # the fit that each rank of this process obeyed last


class Rounds:
    """One rank's side of the talk during one fit. What goes wrong ends it, and nothing else."""

    def __init__(self, store: Any, *, rank: int, world_size: int) -> None:
        self._store = store  # rank 0 may be the one that serves it: until we are through, it must not end under us
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
        self.agreed = threading.Event()
        """There is a verdict, or none to wait for."""

    def step(self, now: float) -> float | None:
        """One round. After how many seconds the next is due; None: after the next offer."""
        if self.failure is not None:
            return None
        try:
            if self._board is None:
                self._board = Board(self._store)
            return self._round(self._board, now)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.failure = f"{type(error).__name__}: {error}".partition("\n")[0]
            return None

    def _round(self, board: Board, now: float) -> float | None:
        raise NotImplementedError

    def leave(self, *, politely: bool = True) -> None:
        """Let go of the store. Politely: take back what holds no longer, which is one more call."""
        try:
            if self._board is not None and self.failure is None and politely:
                self._take_back(self._board)
        except Exception:  # noqa: BLE001, S110 there may be no store any more
            pass
        finally:
            self._board = None
            self._store = None
            self.agreed.set()

    def _take_back(self, board: Board) -> None:
        """Of a rank that says what it did, nothing."""

    def _drained(self, window: int) -> Iterator[Part]:
        """What was offered since the last round, in windows of that length."""
        while self.offers:
            part = self.offers.popleft()
            if part.length == window:
                yield dataclasses.replace(part, useful_tokens=_settled(part.useful_tokens))


class Leader(Rounds):
    """Rank 0: says what holds, and puts the windows together."""

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
        """See which parts have come, and what is complete with them."""
        ranks = range(self._world_size)
        missing = [rank for rank in ranks if any([rank not in parts for parts in self._pending.values()])]
        for rank, note in zip(missing, board.read(*[_key(rank) for rank in missing]), strict=False):
            parts = [unpack(Part, line) for line in _lines(note, self._mine.fit)]
            for part in [part for part in parts if part is not None and part.rank == rank]:
                self._pending.get(part.window, {}).setdefault(rank, part)
        complete = sorted([window for window, parts in self._pending.items() if len(parts) == self._world_size])
        windows = [combine(self._pending[window].values()) for window in complete]
        # Every rank sends its parts in order: what is older and not complete will never be.
        self._pending = {window: parts for window, parts in self._pending.items() if window > max(complete, default=-1)}
        for window in [window for window in windows if window is not None]:
            self.latest = hold(window, self.latest)
            self.finished.append(self.latest)
        if any(windows) and self.latest is not None:
            board.write("window", _note(self._mine.fit, pack(self.latest)))

    def _take_back(self, board: Board) -> None:
        board.replace("verdict", pack(self._mine), "")


class Follower(Rounds):
    """Any other rank: does as rank 0 says, however late, and tells it what it did.

    A verdict that was obeyed before, in this process, is that of an earlier fit. One of an earlier fit that this
    process had no part in, still on the board because rank 0 is not through with it, is taken for the current one
    until the current one is there; that is seen before the first window is sent.
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
        """Look for a newer window; the last step that is known of then."""
        for note in board.read("window"):
            for window in [unpack(Window, line) for line in _lines(note, fit)]:
                if window is not None and window.last_step > known:
                    self.latest = window
                    return window.last_step
        return known


def _settled(amount: Any) -> int | None:
    """Waits for a number that is under way on a device."""
    try:
        return None if amount is None else int(amount)
    except Exception:  # noqa: BLE001 whatever a device may say of it
        return None


def _pause(waited: float, least: float = SOON) -> float:
    return min(max(least, waited), SELDOM)


def _key(rank: int) -> str:
    return f"rank{rank}"


def _note(fit: str, *lines: str) -> str:
    return "\n".join([fit, *lines])


def _lines(note: str, fit: str) -> list[str]:
    """The lines of a note, if it belongs to that fit."""
    first, *lines = note.split("\n")
    return lines if first == fit else []
