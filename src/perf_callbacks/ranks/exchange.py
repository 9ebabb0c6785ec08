"""What ranks did in each window, exchanged while they train: no collective, and no wait in the training thread.

Everything that touches the process group's store happens in a thread of its own, by calls that answer at once. A rank
that is dead, deaf, gone early or without us can keep a window from becoming complete, and nothing else.
"""

import atexit
import logging
import os
import queue
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from perf_callbacks.core.config import PerfConfig
from perf_callbacks.core.records import Window
from perf_callbacks.core.windows import Part, Verdict
from perf_callbacks.host.place import Place
from perf_callbacks.ranks import store as store_room
from perf_callbacks.ranks.rounds import SOON, Follower, Leader, Rounds

AGREE_SECONDS = 5.0
"""How long the start of a fit may wait for rank 0."""

EXIT_SECONDS = 1.0
"""How long the end of the interpreter may wait for a call that the store does not answer."""

log = logging.getLogger("perf_callbacks")


def meet(place: Place, config: PerfConfig, run_id: str) -> "Exchange | None":
    """The other ranks of a fit; None where there are none, or they can't be reached."""
    try:
        store = store_room.default_store() if place.world_size > 1 else None
        if store is None:
            return None
        shortage = store_room.shortage(store, place.world_size)
        if shortage is not None:
            log.log(
                logging.DEBUG if place.rank else logging.WARNING,
                "perf_callbacks: ranks exchange nothing, training goes on: %s.",
                shortage,
            )
            return None
        exchange = Exchange(
            store,
            rank=place.rank,
            world_size=place.world_size,
            window=config.window if config.stragglers == "on" else None,
            run_id=run_id,
            directory=str(place.directory.absolute()) if place.directory_of_all else None,
        )
        exchange.start()
    except Exception as error:  # noqa: BLE001 an observer never ends the run
        log.warning("perf_callbacks: ranks exchange nothing, training goes on: %s", error)
        return None
    return exchange


class Exchange:
    """This rank's part in the exchange of one fit, for its training thread. Nothing here waits, but for `agree`.

    All ranks obey what rank 0 says of window, run and directory: these three count on rank 0 only. There, a `window` of
    None says that nothing is exchanged.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        verdict = Verdict(fit=uuid.uuid4().hex, run_id=run_id, window=window, directory=directory)
        self._rounds: Rounds = (
            Follower(store, rank=rank, world_size=world_size)
            if rank
            else Leader(store, world_size=world_size, verdict=verdict)
        )
        self._talk = _Talk(self._rounds, clock)
        # The thread does not hold on to us: where no end was seen, it ends with us.
        weakref.finalize(self, self._talk.end).atexit = False

    def start(self) -> None:
        """Begin to talk."""
        self._talk.start()

    def agree(self, timeout: float = AGREE_SECONDS) -> Verdict | None:
        """What holds for this fit; waits for rank 0 to say it. None if it has not: it may still come, see `verdict`."""
        if self._talk.here:
            self._rounds.agreed.wait(timeout)
        return self._rounds.verdict

    @property
    def verdict(self) -> Verdict | None:
        """What holds for this fit, as rank 0 says. None: not known yet."""
        return self._rounds.verdict

    @property
    def window(self) -> int | None:
        """Optimizer steps per window. None: not known yet, or nothing is exchanged."""
        return self._rounds.verdict.window if self._rounds.verdict is not None else None

    @property
    def latest(self) -> Window | None:
        """The newest window that is complete, soon the same on all ranks. None before the first."""
        return self._rounds.latest

    @property
    def failure(self) -> str | None:
        """Why the exchange stopped early, where it did."""
        return self._rounds.failure

    def offer(self, part: Part) -> None:
        """What this rank did in a window that is over. Kept is only what is recent.

        Its useful tokens may still be under way on a device; it is not waited for here.
        """
        if self._talk.here:
            self._rounds.offers.append(part)
            self._talk.wake()

    def take(self) -> list[Window]:
        """The windows that became complete since the last time, on rank 0: for the journal."""
        finished = self._rounds.finished
        return [finished.popleft() for _ in range(len(finished))]

    def close(self) -> None:
        """Stop talking and let go of the store, soon. Twice is once. Waits for nothing."""
        self._talk.end()


class _Talk:
    """The thread that does the rounds."""

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
        """Whether this is the process that the thread is in, and not one forked from it."""
        return os.getpid() == self._process

    def start(self) -> None:
        """Begin. Once; there is no second time."""
        if self._thread is not None or self._ending or not self.here:
            return
        self._thread = threading.Thread(target=self._run, name="perf_callbacks ranks", daemon=True)
        _running.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads to be had
            self._rounds.failure = str(error)
            self._finish()

    def wake(self) -> None:
        """There is something to do."""
        if self._calls.empty():
            self._calls.put(None)

    def end(self, *, politely: bool = True) -> None:
        """Stop after the call that is under way."""
        if self._ending or not self.here:
            return
        self._politely = politely
        self._ending = True
        self._calls.put(None)
        if self._thread is None:
            self._rounds.leave(politely=False)

    def wait(self, timeout: float) -> None:
        """Until the thread is through."""
        if self._thread is not None and self.here:
            self._thread.join(max(0.0, timeout))

    def _run(self) -> None:
        while not self._ending and self._rounds.failure is None:
            began = self._clock()
            pause = self._rounds.step(began)
            if self._rounds.failure is None:
                self._rest(pause, began)
        self._finish()

    def _rest(self, pause: float | None, began: float) -> None:
        """Until the next round is due, or something is offered: windows that are shorter than `SOON` share a round."""
        try:
            self._calls.get(timeout=pause)
        except queue.Empty:
            return
        if not self._ending:
            time.sleep(min(SOON, max(0.0, began + SOON - self._clock())))
        while not self._ending and not self._calls.empty():
            self._calls.get()

    def _finish(self) -> None:
        if self._rounds.failure is not None and not self._ending:
            log.warning("perf_callbacks: ranks exchange no more, training goes on: %s", self._rounds.failure)
        self._rounds.leave(politely=self._politely)
        _running.discard(self)


_running: set[_Talk] = set()


def _at_exit() -> None:
    """A thread that comes back from the store while the interpreter goes away would abort the process."""
    talks = list(_running)
    for talk in talks:
        talk.end(politely=False)
    deadline = time.monotonic() + EXIT_SECONDS
    for talk in talks:
        talk.wait(deadline - time.monotonic())


atexit.register(_at_exit)
