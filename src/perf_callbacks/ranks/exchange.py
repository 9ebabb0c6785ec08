"""Exchange of windows between ranks during training, without collectives and without waits in the training thread.

A side thread makes all calls to the store, and each returns at once. Rank 0 closes a window even without a rank that
hangs or lacks the callback.
"""

import atexit
import logging
import os
import queue
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from perf_callbacks.kernel.clock import CLOSE_SECONDS, monotonic, sleep
from perf_callbacks.kernel.engine.windows import JobSettings, Part, WindowReader
from perf_callbacks.kernel.fit.location import FitLocation, run_id
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.cpu_facts import local_ranks
from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.ranks import store as store_room
from perf_callbacks.ranks.channels import ChannelHandler
from perf_callbacks.ranks.leader import Leader
from perf_callbacks.ranks.node import Node, gathered
from perf_callbacks.ranks.rounds import MANY, SOON, Follower, Rounds

AGREE_SECONDS = 5.0
"""Longest wait of a fit's start for rank 0."""

log = logging.getLogger("perf_callbacks")


def meet(location: FitLocation, config: PerfConfig) -> "Exchange | None":
    """None: a single rank, or no usable store."""
    try:
        store = store_room.default_store() if location.world_size > 1 else None
        if store is None:
            return None
        node = _node(store, location)
        connections = location.world_size // (1 if node is None else len(node.ranks))
        shortage = store_room.shortage(store, location.world_size, connections)
        if shortage is not None:
            log.log(
                logging.DEBUG if location.rank else logging.WARNING,
                "perf_callbacks: ranks exchange nothing, training goes on: %s.",
                shortage,
            )
            return None
        exchange = Exchange(
            store,
            rank=location.rank,
            world_size=location.world_size,
            window=config.window if config.exchange == "on" else None,
            signals=config.stragglers == "on",
            run_id=run_id(location),
            directory=str(location.directory.absolute()) if location.directory_of_all else None,
            node=node,
        )
        exchange.start()
    except Exception as error:  # noqa: BLE001 an observer never ends the run
        let_pass(error)
        log.warning("perf_callbacks: ranks exchange nothing, training goes on: %s", error)
        return None
    return exchange


def exchange_of(recorder: Recorder) -> "Exchange | None":
    return recorder.ranks if isinstance(recorder.ranks, Exchange) else None


class Exchange:
    """One rank's side of the exchange, for the training thread. Only `agree` and `close` wait.

    All ranks use the window length, the run id and the directory of rank 0. Without a length, ranks exchange nothing.
    """

    def __init__(
        self,
        store: Any,
        *,
        rank: int,
        world_size: int,
        window: int | None,
        run_id: str,
        directory: str | None = None,
        signals: bool = False,
        attempt: int | None = None,
        node: Node | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        job_settings = JobSettings(
            fit=uuid.uuid4().hex, run_id=run_id, window=window, directory=directory, signals=signals
        )
        attempt = _restarts() if attempt is None else attempt
        self.rounds: Rounds = (
            Follower(store, rank=rank, world_size=world_size, attempt=attempt, node=node)
            if rank
            else Leader(store, world_size=world_size, job_settings=job_settings, attempt=attempt, node=node)
        )
        self._talk = _ExchangeThread(self.rounds, clock)
        # The thread holds no reference to this object, so both end together even if the end of the fit was missed.
        weakref.finalize(self, self._talk.end).atexit = False

    def start(self) -> None:
        self._talk.start()

    def agree(self, timeout: float = AGREE_SECONDS) -> JobSettings | None:
        """Return rank 0's settings, or None after the timeout; `job_settings` may have them later."""
        if self._talk.here:
            self.rounds.agreed.wait(timeout)
        return self.rounds.job_settings

    @property
    def job_settings(self) -> JobSettings | None:
        """As announced by rank 0. None: not known yet."""
        return self.rounds.job_settings

    @property
    def window(self) -> int | None:
        """Optimizer steps in a window. None: not known yet, or nothing is exchanged."""
        return self.rounds.job_settings.window if self.rounds.job_settings is not None else None

    @property
    def signals(self) -> bool:
        """True if ranks also exchange signals, such as the times of each step. False while the settings are unknown."""
        job_settings = self.rounds.job_settings
        return job_settings is not None and job_settings.window is not None and job_settings.signals

    @property
    def role(self) -> Mapping[str, int]:
        """Coordinates of this rank in the layout of the job, such as `{"data": 3, "tensor": 0}`. Empty: unknown."""
        return self.rounds.role

    @role.setter
    def role(self, role: Mapping[str, int]) -> None:
        self.rounds.role = dict(role)

    def set_reader(self, reader: WindowReader) -> None:
        """On rank 0, windows go to the reader until it raises. It is held weakly, for abandoned fits."""
        if isinstance(self.rounds, Leader):
            self.rounds.reader = weakref.WeakMethod(reader)

    @property
    def latest(self) -> Window | None:
        """Newest closed window that has reached this rank. None before the first."""
        return self.rounds.latest

    @property
    def failure(self) -> str | None:
        """Error that stopped the exchange early."""
        return self.rounds.failure

    def open(self, name: str, handler: ChannelHandler) -> None:
        """The side thread calls the handler in each round. In large jobs, each machine's first must open it too."""
        self.rounds.open(name, handler)

    def wake(self) -> None:
        """Run a round soon, because a handler has a note to write."""
        self._talk.wake()

    def offer(self, part: Part) -> None:
        """Hand a window to the side thread, which keeps recent ones, without a wait for useful tokens."""
        if self._talk.here:
            self.rounds.offers.append(part)
            self._talk.wake()

    def take(self) -> list[Window]:
        """Return the windows that were closed since the previous call, for rank 0's journal."""
        finished = self.rounds.finished
        return [finished.popleft() for _ in range(len(finished))]

    def close(self) -> None:
        """Stop the exchange and release the store. Wait for the side thread, at most `CLOSE_SECONDS`."""
        self._talk.end()
        self._talk.wait(CLOSE_SECONDS)


class _ExchangeThread:
    def __init__(self, rounds: Rounds, clock: Callable[[], float]) -> None:
        self._rounds = rounds
        self._clock = clock
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._process = os.getpid()
        self._ending = False
        self._politely = True
        self._thread: threading.Thread | None = None

    @property
    def here(self) -> bool:
        return os.getpid() == self._process

    def start(self) -> None:
        if self._thread is not None or self._ending or not self.here:
            return
        self._thread = threading.Thread(target=self._run, name="perf_callbacks ranks", daemon=True)
        _running.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread available
            let_pass(error)
            self._rounds.failure = str(error)
            self._finish()

    def wake(self) -> None:
        """In a forked child, there is no side thread to wake."""
        if self.here and self._calls.empty():
            self._calls.put(None)

    def end(self, *, politely: bool = True) -> None:
        if self._ending or not self.here:
            return
        self._politely = politely
        self._ending = True
        self._calls.put(None)
        if self._thread is None:
            self._rounds.leave(politely=False)

    def wait(self, timeout: float) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and self.here and thread.is_alive():
            thread.join(max(0.0, timeout))

    def _run(self) -> None:
        while not self._ending and self._rounds.failure is None:
            began = self._clock()
            pause = self._rounds.step(began)
            if self._rounds.failure is None:
                self._rest(pause, began)
        self._finish()

    def _rest(self, pause: float | None, began: float) -> None:
        """Sleep until the next round is due or, `SOON` seconds after the last one began, `wake` is called."""
        try:
            self._calls.get(timeout=pause)
        except queue.Empty:
            return
        if not self._ending:
            sleep(min(SOON, max(0.0, began + SOON - self._clock())))
        while not self._ending and not self._calls.empty():
            self._calls.get()

    def _finish(self) -> None:
        if self._politely and self._rounds.failure is None and any([part.signals for part in self._rounds.offers]):
            self._rounds.step(self._clock())  # rank 0 waits a moment for the last window, to compare its steps
        if self._rounds.failure is not None and not self._ending:
            log.warning("perf_callbacks: ranks stop exchanging, training goes on: %s", self._rounds.failure)
        self._rounds.leave(politely=self._politely)
        _running.discard(self)


def _node(store: Any, location: FitLocation) -> Node | None:
    """None: every rank of the machine talks with the store directly."""
    address = store_room.address(store)
    if address is None:
        return None
    job = [*address, os.environ.get("TORCHELASTIC_RUN_ID", "")]
    local = local_ranks(os.environ)
    return gathered(location.rank, location.world_size, local, many=MANY, job=job, attempt=_restarts())


def _restarts() -> int:
    word = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(word) if word.isdecimal() else 0


_running: set[_ExchangeThread] = set()


def end_at_exit() -> None:
    """If a thread returned from the store during the shutdown of the interpreter, the process would abort."""
    talks = list(_running)
    for talk in talks:
        talk.end(politely=False)
    deadline = monotonic() + CLOSE_SECONDS
    for talk in talks:
        talk.wait(deadline - monotonic())


atexit.register(end_at_exit)
