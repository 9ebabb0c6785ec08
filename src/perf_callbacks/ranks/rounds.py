"""Rounds of messages between ranks: rank 0's settings, each rank's data of a window, and combined windows.

A round does what is possible now and returns the seconds until the next. It reads no clock, and waits only for a number
that a device still computes.
"""

import dataclasses
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, cast

from perf_callbacks.kernel.engine.windows import JobSettings, Part
from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.ranks.bundles import Bundle
from perf_callbacks.ranks.channels import Channel, ChannelHandler
from perf_callbacks.ranks.node import LOOK_SECONDS, FileNotes, Node, Relay
from perf_callbacks.ranks.packed_parts import pack_bundle
from perf_callbacks.ranks.store import StoreNotes

MANY = 64
"""In a job of more ranks, one rank of each machine talks with the store for all of them."""

FEW = 16
"""In a larger job, a rank looks for rank 0's newest window only when it sends data."""

KEPT = 8
"""Windows whose data a rank, or the store, keeps. If a rank falls further behind, the oldest close without its data."""

KEPT_OF_MANY = 4
"""The same for the store in a job of more than `MANY` ranks."""

DEADLINE_SECONDS = 10.0
"""A window then closes even if the data of some ranks are missing; or after two steps, if these take longer."""

FINISHED = 64
"""Windows that wait for `Exchange.take`."""

SOON = 0.1
"""Between the first two looks for missing notes. Each later pause is as long as the wait so far, at most `SELDOM`."""

SOON_HERE = 0.5
"""Like `SOON`, for notes of the machine's other ranks."""

SELDOM = 30.0
"""Longest pause between two looks for missing notes."""

EARLY = 0.01
"""Like `SOON`, for the settings that training waits for. Each later pause is an eighth of the wait so far."""

OBEYED: dict[int, str] = {}
"""By rank of this process: the fit whose settings the rank last followed."""


class Rounds:
    """A rank's side of the exchange in a fit. An error ends only the exchange, not the training."""

    def __init__(self, store: Any, *, rank: int, world_size: int, attempt: int, node: Node | None = None) -> None:
        self._store = store  # held because rank 0 may serve the store, which must not end before the exchange does
        self._board: StoreNotes | FileNotes | None = None
        self._node = node
        self._relay: Relay | None = None
        self._rank = rank
        self._world_size = world_size
        self._attempt = attempt
        self.role: Mapping[str, int] = {}
        """Coordinates of this rank in the layout of the job."""
        self.offers: deque[Part] = deque(maxlen=KEPT)
        """Unsent."""
        self.finished: deque[Window] = deque(maxlen=FINISHED)
        """On rank 0, the closed windows for `Exchange.take`."""
        self.job_settings: JobSettings | None = None
        self.latest: Window | None = None
        self.failure: str | None = None
        self._handlers: dict[str, ChannelHandler] = {}
        self.channels: dict[str, Channel] = {}
        self.agreed = threading.Event()
        """Set when the settings of the job are known, or when it is clear that rank 0 will send none."""

    def step(self, now: float) -> float | None:
        """Run a round. Return the seconds until the next; None: it waits for `Exchange.offer`."""
        if self.failure is not None:
            return None
        try:
            board = self._join() if self._board is None else self._board
            settings = self.job_settings
            opened = () if settings is None or settings.window is None else self._opened(board, settings.fit)
            pauses = [handler.round(channel, now) for handler, channel in opened]
            pauses += [self._round(board, now), self._pass_on(board, now)]
            return min([pause for pause in pauses if pause is not None], default=None)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            let_pass(error)
            self.failure = f"{type(error).__name__}: {error}".partition("\n")[0]
            return None

    def open(self, name: str, handler: ChannelHandler) -> None:
        self._handlers = {**self._handlers, name: handler}  # new, as the thread may be reading the old dict

    def _opened(self, board: StoreNotes | FileNotes, fit: str) -> Iterator[tuple[ChannelHandler, Channel]]:
        for name, handler in self._handlers.items():
            channel = self.channels.get(name)
            if channel is None or channel.fit != fit:
                channel = Channel(name, board, fit, rank=self._rank, world_size=self._world_size)
                self.channels[name] = channel
            yield handler, channel

    def _join(self) -> StoreNotes | FileNotes:
        """Connect to the store, or open the machine's directory if another rank talks with the store."""
        if self._node is not None and not self._node.talks:
            self._board = FileNotes(self._node.directory)
            return self._board
        self._board = StoreNotes(self._store)
        if self._node is not None:
            size = self._world_size
            self._relay = Relay(self._node, lambda rank, window: slot(rank, window, size), slots(size))
        return self._board

    def _round(self, board: StoreNotes | FileNotes, now: float) -> float | None:
        raise NotImplementedError

    def _pass_on(self, board: StoreNotes | FileNotes, now: float) -> float | None:
        """If this rank talks for its machine, pass notes between the store and the other ranks."""
        relay, job_settings = self._relay, self.job_settings
        if relay is None or job_settings is None:
            return None
        window = "" if self.latest is None else note_of_window(job_settings.fit, self.latest)
        shared = {name: channel.seen for name, channel in self.channels.items()}
        relay.tell({**shared, "window": window, "verdict": pack(job_settings)})
        if job_settings.window is None:
            return None
        cast("StoreNotes", board).write_all(
            {**relay.notes(self.channels), **relay.collect(mark(job_settings.fit), now)}
        )
        return LOOK_SECONDS if relay.since is None else min(LOOK_SECONDS, pause(now - relay.since, SOON_HERE))

    def leave(self, *, politely: bool = True) -> None:
        """Release the store. If `politely`, first withdraw outdated notes from it."""
        try:
            with guard(let_pass):  # the store may be gone
                if self._board is not None and self.failure is None and politely:
                    if self.job_settings is not None:
                        for handler, channel in self._opened(self._board, self.job_settings.fit):
                            handler.leave(channel)
                    self._take_back(self._board)
                if self._relay is not None:
                    self._relay.folder.leave(talks=True)
                elif isinstance(self._board, FileNotes):
                    self._board.leave()
        finally:
            self._board = self._relay = None
            self._store = None
            self.agreed.set()

    def _take_back(self, board: StoreNotes | FileNotes) -> None:
        """Withdraw notes from the store. A rank that only sends its data has none."""

    def _drained(self, window: int) -> list[Part]:
        """Return the parts offered since the previous round whose window length is `window`."""
        parts = [self.offers.popleft() for _ in range(len(self.offers))]
        return [
            dataclasses.replace(part, useful_tokens=_settled(part.useful_tokens), role=self.role, attempt=self._attempt)
            for part in parts
            if part.length == window
        ]


class Follower(Rounds):
    """Follows rank 0's settings and sends its own data.

    Settings of an earlier fit in the store are ignored, or followed for a moment if this process had no part in it.
    """

    def __init__(self, store: Any, *, rank: int, world_size: int, attempt: int, node: Node | None = None) -> None:
        super().__init__(store, rank=rank, world_size=world_size, attempt=attempt, node=node)
        self._earlier = OBEYED.get(rank)
        self._began: float | None = None
        self._since = 0.0
        self._awaited = 0

    def _round(self, board: StoreNotes | FileNotes, now: float) -> float | None:
        self._began = now if self._began is None else self._began
        if self.offers or self.job_settings is None or self.job_settings.window is None:
            self._hear(board)
        if self.job_settings is None or self.job_settings.window is None:
            return pause((now - self._began) / 8, EARLY)
        parts = self._drained(self.job_settings.window)
        for part in parts:
            packed = pack_bundle(Bundle.from_part(part), mark(self.job_settings.fit))
            if self._relay is not None:
                self._relay.open(part.window, packed, now, now + patience(part))
            else:
                board.write(slot(self._rank, part.window, self._world_size), packed)
        if parts:
            self._awaited, self._since = (parts[-1].window + 1) * parts[-1].length, now
        if self._world_size > FEW and isinstance(board, StoreNotes):
            return None  # if all ranks kept looking, this would cost rank 0 more than their parts do
        if self._awaited > self._known:
            self._hear(board)
        return pause(now - self._since) if self._awaited > self._known else None

    @property
    def _known(self) -> int:
        return self.latest.last_step if self.latest is not None else 0

    def _hear(self, board: StoreNotes | FileNotes) -> None:
        """Read rank 0's newest window, and its settings unless the window belongs to the current fit."""
        if self._awaited and self.job_settings is not None and isinstance(board, StoreNotes):
            note = board.peek("window")  # thousands of ranks do this with each window
            if note.startswith(self.job_settings.fit):
                self._learn(note)
                return
        notes = board.read("verdict", "window")
        if notes:
            self._obey(notes[0])
            self._learn(notes[1])

    def _obey(self, note: str) -> None:
        job_settings = unpack(JobSettings, note)
        held = self.job_settings.fit if self.job_settings is not None else None
        if job_settings is not None and job_settings.fit not in {self._earlier, held}:
            self.job_settings, self.latest, self._awaited = job_settings, None, 0
            OBEYED[self._rank] = job_settings.fit
            self.agreed.set()

    def _learn(self, note: str) -> None:
        fit, _, line = note.partition("\n")
        if self.job_settings is None or fit != self.job_settings.fit or not self._awaited:
            return  # before the first part is sent, the settings may be those of an earlier fit
        window = unpack(Window, line)
        if window is not None and window.last_step > self._known:
            self.latest = window


def _settled(amount: Any) -> int | None:
    """Wait for a number that a device may still compute. None: there is none, or an error."""
    with guard(let_pass):  # a device may raise anything
        return None if amount is None else int(amount)
    return None


def pause(waited: float, least: float = SOON) -> float:
    return min(max(least, waited), SELDOM)


def patience(part: Part) -> float:
    """Return after how long a window closes without some ranks: two steps at least, as parts may come a step late."""
    return max(DEADLINE_SECONDS, 2 * part.seconds / max(1, part.steps))


def slot(rank: int, window: int, world_size: int) -> str:
    """Return the key of a rank's data. Windows reuse a fixed number of keys in turn."""
    return f"part{window % slots(world_size)} {rank}"


def slots(world_size: int) -> int:
    """Return the number of windows whose data the store keeps."""
    return KEPT if world_size <= MANY else KEPT_OF_MANY


def mark(fit: str) -> bytes:
    return sha256(fit.encode()).digest()[:16]


def note_of_window(fit: str, window: Window) -> str:
    return f"{fit}\n{pack(window)}"
