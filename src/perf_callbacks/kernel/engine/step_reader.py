"""Reader of finished steps: from the tape, through the open steps, into the ledger. One thread at a time."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

from perf_callbacks.kernel.engine.account import BEGINNING
from perf_callbacks.kernel.engine.ledger import Ledger
from perf_callbacks.kernel.engine.marks import Pause
from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.open_steps import OpenSteps
from perf_callbacks.kernel.engine.protocols import DeviceTimeline
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import Columns
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.records.fit_records import Gc, Record

MOMENT_SECONDS = 0.05
"""Longest time that a thread waits for another thread that reads steps."""


class StepReader:
    """Moves finished steps from the tape through the open steps to the ledger.

    Marks are written on the tape without a lock. A thread that reads any of the three holds one lock for all of them.
    """

    def __init__(
        self,
        tape: Tape,
        pending: OpenSteps,
        ledger: Ledger,
        observers: Observers,
        *,
        device: DeviceTimeline | None,
        tell: Callable[[Pause, str, int | None], Gc],
        interrupted: Callable[[], None],
    ) -> None:
        self._tape, self._pending, self._ledger, self._observers = tape, pending, ledger, observers
        self._device = device
        self._tell, self._interrupted = tell, interrupted
        self._unseen: deque[tuple[Columns | None, list[Gc]]] = deque()  # by observers
        self._lock = RLock()
        self._reading = False
        self.overdue = False
        """True: the device must be asked for its times before the step ends."""
        self.longest_step = 0.0
        """Seconds of the longest step so far, without the first step, which includes setup and compilation."""

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Hold the lock. Yield False if another thread holds the lock for longer than a moment."""
        held = self._lock.acquire(timeout=MOMENT_SECONDS)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def collect(self, *, show: bool = True) -> bool:
        """Read the finished steps.

        Return True if the device has reported the times of all of them. Observers see no steps if a loader's thread
        calls this, or if the call comes in the middle of a step.
        """
        with self.alone() as held:
            if not held or self._reading:  # a signal handler or finalizer may interrupt a call, and call this again
                return False
            self._reading = True
            self.overdue = False
            try:
                self._collect()
            except BaseException:  # an interrupt, say: half-read marks would go to the wrong steps
                self._pending.ended.clear()
                self._tape.pairs.clear()
                self._interrupted()
                raise
            finally:
                self._reading = False
        while show and self._unseen:
            steps, pauses = self._unseen.popleft()
            if self._observers.watching:
                self._observers.steps_measured([] if steps is None else steps.rows, pauses)
        return not self._pending.passed

    def write_early(self, emit: Callable[[Record], None]) -> None:
        """Write the finished steps that were not handed out yet. Called outside the training thread.

        No state changes: the tape is read from a copy, and the FLOPs of its steps stay unknown.

        The device is not queried: a query might spoil the capture of a graph in the training thread, and this thread
        might hang with the device. The training thread queries the device at the next micro-batch, and the next block
        contains the times.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._reading:
                self.overdue = bool(self._pending.passed)
                late = self._pending.early(self._tape.peek()) if self._device is None else None
                block = self._ledger.early_block(late)
                if block is not None:
                    emit(block)
        finally:
            self._lock.release()

    def lose_outstanding(self) -> None:
        """Enter the steps whose times are still on the device into the ledger, as lost steps."""
        self._enter(self._pending.timed([None] * len(self._pending.passed)))

    def _collect(self) -> None:
        if self._observers.overriding["marks_read"]:
            self._observers.marks_read(self._tape.pairs[:], [number for number, *_ in self._pending.ended])
        past, told = self._tape.read()
        ended = self._pending.ended
        pauses = [
            self._tell(
                pause,
                "other" if stage is Stage.UNDECIDED else stage.name.lower(),
                ended[place][0] if place < len(ended) else None,
            )
            for pause, stage, place in told
        ]
        finished = None
        if self._device is not None:
            if past.calls:
                self._pending.wait(past)
            finished = self._enter(self._pending.timed(self._device.ready()))
        elif past.calls:
            finished = self._enter(self._pending.finish(past))
        self._unseen.append((finished, pauses))

    def _enter(self, steps: Columns | None) -> Columns | None:
        if steps is not None:
            self._ledger.enter(steps)
            times: Sequence[Any] = steps.step_seconds
            if any(steps.excluded):
                known = zip(times, steps.excluded, strict=True)
                times = [time for time, reason in known if time is not None and reason not in BEGINNING]
            self.longest_step = max(self.longest_step, *times) if times else self.longest_step
        return steps
