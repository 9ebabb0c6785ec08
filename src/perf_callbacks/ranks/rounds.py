"""Exchange messages between ranks in rounds: rank 0's settings, each rank's data of a window, and combined windows.

A round does all work that is possible now and returns the seconds until the next round. No function of this module
reads a clock. A round never waits, except for a number that a device is still computing.
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
"""In a job of more ranks than this, one rank of each machine talks with the store for all of the machine's ranks."""

FEW = 16
"""In a job of at most this many ranks, each rank keeps looking for rank 0's newest window. In a larger job, a rank
looks for rank 0's window only when the rank sends data."""

KEPT = 8
"""Largest number of windows for which a rank, or the store, keeps the rank's data. If a rank falls behind by more
windows, the oldest windows close without its data."""

KEPT_OF_MANY = 4
"""Largest number of windows for which the store keeps a rank's data, in a job of more than `MANY` ranks."""

DEADLINE_SECONDS = 10.0
"""Seconds after which a window closes even if the data of some ranks are missing. If two steps take longer than
`DEADLINE_SECONDS`, the window stays open for the time of two steps."""

FINISHED = 64
"""Largest number of windows that wait for `Exchange.take`."""

SOON = 0.1
"""Seconds between a rank's first two looks for missing notes. Each later pause is as long as the rank has already
waited, but at most `SELDOM` seconds."""

SOON_HERE = 0.5
"""Like `SOON`, but for notes of the other ranks of the machine."""

SELDOM = 30.0
"""Longest pause, in seconds, before a rank looks again for missing notes."""

EARLY = 0.01
"""Like `SOON`, but for the settings that training waits for. Each later pause is an eighth of the time that the rank
has waited."""

_obeyed: dict[int, str] = {}  # by rank of this process: the fit whose settings the rank last followed


class Rounds:
    """A rank's side of the exchange in a fit. An error ends only the exchange, not the training."""

    def __init__(self, store: Any, *, rank: int, world_size: int, attempt: int = 0, node: Node | None = None) -> None:
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
        """Unsent parts of this rank. A part holds the rank's data of one window."""
        self.finished: deque[Window] = deque(maxlen=FINISHED)
        """On rank 0, the closed windows that `Exchange.take` has not returned yet."""
        self.job_settings: JobSettings | None = None
        self.latest: Window | None = None
        self.failure: str | None = None
        self._handlers: dict[str, ChannelHandler] = {}
        self._channels: dict[str, Channel] = {}
        self.agreed = threading.Event()
        """Set when the settings of the job are known, or when it is clear that rank 0 will send none."""

    def step(self, now: float) -> float | None:
        """Run a round. Return the seconds until the next round. None: the next round waits for `Exchange.offer`."""
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
            channel = self._channels.get(name)
            if channel is None or channel.fit != fit:
                channel = Channel(name, board, fit, rank=self._rank, world_size=self._world_size)
                self._channels[name] = channel
            yield handler, channel

    def _join(self) -> StoreNotes | FileNotes:
        """Connect to the store, or open the machine's directory if another rank of the machine talks with the store."""
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
        """If this rank talks for its machine, pass notes between the store and the machine's other ranks."""
        relay, job_settings = self._relay, self.job_settings
        if relay is None or job_settings is None:
            return None
        window = "" if self.latest is None else note_of_window(job_settings.fit, self.latest)
        shared = {name: channel.seen for name, channel in self._channels.items()}
        relay.tell({**shared, "window": window, "verdict": pack(job_settings)})
        if job_settings.window is None:
            return None
        cast("StoreNotes", board).write_all(
            {**relay.notes(self._channels), **relay.collect(mark(job_settings.fit), now)}
        )
        return LOOK_SECONDS if relay.since is None else min(LOOK_SECONDS, pause(now - relay.since, SOON_HERE))

    def leave(self, *, politely: bool = True) -> None:
        """Release the store. If `politely` is True, withdraw outdated notes from the store before the release."""
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
        """Withdraw notes from the store. A rank that only sends its data has no notes to withdraw."""

    def _drained(self, window: int) -> list[Part]:
        """Return the parts offered since the previous round. Drop parts whose window length is not `window`."""
        parts = [self.offers.popleft() for _ in range(len(self.offers))]
        return [
            dataclasses.replace(part, useful_tokens=_settled(part.useful_tokens), role=self.role, attempt=self._attempt)
            for part in parts
            if part.length == window
        ]


class Follower(Rounds):
    """A rank other than rank 0. The rank follows rank 0's settings and sends its own data.

    The store may still hold the settings of an earlier fit. If this process took part in the earlier fit, the rank
    ignores the settings of the earlier fit. If the process had no part in the earlier fit, the rank follows the earlier
    fit's settings until the current settings arrive. The current settings arrive before the first window is sent.
    """

    def __init__(self, store: Any, *, rank: int, world_size: int, attempt: int = 0, node: Node | None = None) -> None:
        super().__init__(store, rank=rank, world_size=world_size, attempt=attempt, node=node)
        self._earlier = _obeyed.get(rank)
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
            packed = pack_bundle(Bundle.of(part), mark(self.job_settings.fit))
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
        """Read rank 0's newest window. Read rank 0's settings too, unless the window belongs to the current fit."""
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
            _obeyed[self._rank] = job_settings.fit
            self.agreed.set()

    def _learn(self, note: str) -> None:
        fit, _, line = note.partition("\n")
        if self.job_settings is None or fit != self.job_settings.fit or not self._awaited:
            return  # before the first part is sent, the settings may be those of an earlier fit
        window = unpack(Window, line)
        if window is not None and window.last_step > self._known:
            self.latest = window


def _settled(amount: Any) -> int | None:
    """Wait for a number that a device may still be computing. Return None if there is no number, or after an error."""
    with guard(let_pass):  # a device may raise anything
        return None if amount is None else int(amount)
    return None


def pause(waited: float, least: float = SOON) -> float:
    """Return the seconds until the next look of a rank that has waited for `waited` seconds."""
    return min(max(least, waited), SELDOM)


def patience(part: Part) -> float:
    """Return the seconds after which a window closes even if the data of some ranks are missing.

    The result is at least the time of two steps, because a rank may send its data one step after the window's end.
    """
    return max(DEADLINE_SECONDS, 2 * part.seconds / max(1, part.steps))


def slot(rank: int, window: int, world_size: int) -> str:
    """Return the key of a rank's data of a window. Windows reuse a fixed number of keys in turn."""
    return f"part{window % slots(world_size)} {rank}"


def slots(world_size: int) -> int:
    """Return the number of windows for which the store keeps the data of ranks."""
    return KEPT if world_size <= MANY else KEPT_OF_MANY


def mark(fit: str) -> bytes:
    return sha256(fit.encode()).digest()[:16]


def note_of_window(fit: str, window: Window) -> str:
    """Make the note by which rank 0 announces a window."""
    return f"{fit}\n{pack(window)}"
