"""Moves finished steps from the tape into the ledger. Only one thread at a time reads the tape."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from operator import is_
from threading import RLock
from typing import Any, Protocol

from perf_callbacks.kernel.batches.reader import Batch, nothing, together
from perf_callbacks.kernel.clock import PATIENCE_STEPS, sleep
from perf_callbacks.kernel.engine.account import BEGINNING
from perf_callbacks.kernel.engine.ledger import MOST_UNTOLD, Ledger
from perf_callbacks.kernel.engine.marks import Calls, Mark, Pause
from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import SUSPENDED, Columns, Step, StepFlops, plus
from perf_callbacks.kernel.engine.tape import StageTimes, Tape
from perf_callbacks.kernel.engine.work_model import LOOK_STEPS, WorkModel
from perf_callbacks.kernel.records.fit_records import Record

MOMENT_SECONDS = 0.05
"""Longest wait for another thread that reads steps."""

DRAIN_SECONDS = 1.0
"""Longest wait for the device at a fit's end, or `PATIENCE_STEPS` if these take longer and nothing has failed."""


LONG_SECONDS = 5.0
"""Only a step of at least this length is looked at for a suspension of the process."""


class DeviceTimeline(Protocol):
    """Times of the marks by an accelerator's clock. They arrive some time after a step, in order, and may get lost."""

    def mark(self, mark: Mark) -> None:
        """Put a mark into the device's stream, after the work that was submitted so far."""

    def ready(self) -> list[tuple[float, ...] | str]:
        """Return each stage's seconds for the steps whose times have arrived, or why a step's times were lost."""
        ...

    def capturing(self) -> bool:
        """Return True while a CUDA graph or the like is captured. Meanwhile `ready` returns no steps."""
        ...


class StepReader:
    """Moves finished steps to the ledger once the device, or else the tape, has their times.

    The training thread writes without a lock. Who reads marks, ends of steps or the ledger holds the lock.
    """

    def __init__(
        self,
        tape: Tape,
        ledger: Ledger,
        observers: Observers,
        *,
        device: DeviceTimeline | None,
        tell: Callable[[Pause, str, int | None], object],
        interrupted: Callable[[], None],
    ) -> None:
        self._tape, self._ledger, self._observers, self._device = tape, ledger, observers, device
        self._tell, self._interrupted = tell, interrupted
        self.work = WorkModel()
        self.ended: deque[tuple[int, str | None, list[Batch]]] = deque()
        """Steps whose marks were not read yet: number, reason for exclusion or None, batches."""
        self.passed: deque[Step] = deque()
        self.longest_step = 0.0
        """Without the first step of a fit, which setup and compilation make longer."""
        self.longest_timed = 0.0
        self._unseen: deque[Columns] = deque()  # steps that the observers have not received
        self._lock = RLock()
        self._reading = False
        self._batch = Batch(None, None, None, ())
        self._with_tokens: Callable[[Batch], Batch] | None = None
        self._untold: dict[int, list[Batch]] = {}  # first steps without tokens
        self._unlooked = 0

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Hold the lock. The block gets False, and runs without, if another thread keeps it for `MOMENT_SECONDS`."""
        held = self._lock.acquire(timeout=MOMENT_SECONDS)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def collect(self, *, show: bool = True) -> bool:
        """Return True if all finished steps have their times. Within a step, `show=False` keeps them from observers."""
        with self.alone() as held:
            if not held or self._reading:  # a signal handler or finalizer may interrupt a call, and call this again
                return False
            self._reading = True
            try:
                self._collect()
            except BaseException:  # an interrupt, say: half-read marks would go to the wrong steps
                self.ended.clear()
                self._tape.pairs.clear()
                self._interrupted()
                raise
            finally:
                self._reading = False
        while show and self._unseen:
            steps = self._unseen.popleft()
            if self._observers.watching:
                self._observers.steps_measured(steps.rows)
        return not self.passed

    def drain(self, clock: Callable[[], float], *, failed: bool) -> None:
        began = clock()
        while not self.collect() and not (self._device is not None and self._device.capturing()):
            longest = self.longest_step or self.longest_timed  # a first step may compile for minutes
            if clock() - began > max(DRAIN_SECONDS, 0 if failed else PATIENCE_STEPS * longest):
                return
            sleep(0.001)

    def write_early(self, emit: Callable[[Record], None]) -> None:
        """Write the finished steps that the journal lacks, from the watchdog's thread.

        Tape and sums stay, and steps on the tape get no FLOPs. A query might hang the device, or break a graph capture.
        """
        with self.alone() as held:
            if held and not self._reading:
                late = self._early(self._tape.peek()) if self._device is None else None
                block = self._ledger.early_block(late)
                if block is not None:
                    emit(block)

    def tell_tokens(self, with_tokens: Callable[[Batch], Batch]) -> dict[int, int]:
        """Use this function from now on. Return the token counts of earlier steps that are in the ledger, by number."""
        self._with_tokens = with_tokens
        untold, self._untold = self._untold, {}
        counts = {number: self._find_tokens(number, batches) for number, batches in untold.items()}
        tokens = {number: amount for number, amount in counts.items() if amount is not None}
        self.passed = deque([step._replace(tokens=tokens.pop(step.number, step.tokens)) for step in self.passed])
        return tokens

    def lose_outstanding(self) -> None:
        """Stop asking the device for times. Steps whose times are still there enter the ledger as lost."""
        self._enter(self._timed(["lost"] * len(self.passed)))
        self._device = None

    def _collect(self) -> None:
        written = self._tape.take()
        if self._observers.overriding["marks_read"]:
            self._observers.marks_read(written, [number for number, *_ in self.ended])
        times, pauses = self._tape.read(written)
        ended = self.ended
        for pause, stage, place in pauses:
            self._tell(
                pause,
                "other" if stage is Stage.UNDECIDED else stage.name.lower(),
                ended[place][0] if place < len(ended) else None,
            )
        finished = None
        if self._device is not None:
            if times.calls:
                self._wait(times)
            finished = self._enter(self._timed(self._device.ready()))
        elif times.calls:
            finished = self._enter(self._finish(times))
        if finished is not None:
            self._unseen.append(finished)

    def _enter(self, steps: Columns | None) -> Columns | None:
        if steps is not None:
            if max(filter(None, steps.step_seconds), default=0.0) >= LONG_SECONDS:
                steps = steps._replace(excluded=[*map(self._reason, steps.excluded, steps.step_seconds)])
            self._ledger.enter(steps)
            times: Sequence[Any] = steps.step_seconds
            if any(steps.excluded):
                pairs = [*zip(times, steps.excluded, strict=True)]
                self.longest_timed = max([self.longest_timed, *[time for time, _ in pairs if time is not None]])
                times = [time for time, reason in pairs if time is not None and reason not in BEGINNING]
            self.longest_step = max([self.longest_step, *times])
            self.longest_timed = max(self.longest_timed, self.longest_step)
        return steps

    def _reason(self, reason: str | None, seconds: float | None) -> str | None:
        """A long step without a reason may contain a suspension."""
        long = reason is None and seconds is not None and seconds >= LONG_SECONDS
        return SUSPENDED if long and self._observers.suspended(seconds or 0.0) else reason

    def _finish(self, times: StageTimes) -> Columns:
        ended = map(deque.popleft, repeat(self.ended, len(times.calls)))
        number, excluded, batches = zip(*ended, strict=True)
        self.work.look(number[-1])
        alike = _alike(batches)
        if alike and batches[0]:
            amounts = self._through(batches[0], times.calls[0])
            samples, tokens, useful_tokens = [(amount,) * len(number) for amount in amounts]
        else:
            samples, tokens, useful_tokens = zip(*map(self._through, batches, times.calls), strict=True)
        if None in tokens and (self._with_tokens is not None or len(self._untold) < MOST_UNTOLD):
            tokens = tuple(map(self._find_tokens, number, batches, tokens))
        efforts = self._efforts(number, batches, times.calls, alike=alike)
        self.work.settle()
        paused = longest = [0.0] * len(number)
        if any(times.pauses):
            paused = [float(sum(pauses)) for pauses in times.pauses]
            longest = [max(pauses, default=0.0) for pauses in times.pauses]
        return Columns(
            number, excluded, samples, tokens, useful_tokens, efforts, paused, longest, times.seconds, times.stages
        )

    def _wait(self, times: StageTimes) -> None:
        self._unlooked += len(times.calls)
        if self._unlooked >= LOOK_STEPS:
            self._unlooked = 0
            self.work.look(self.ended[len(times.calls) - 1][0])
        for pauses, calls in zip(times.pauses, times.calls, strict=True):
            number, excluded, batches = self.ended.popleft()
            effort = self._effort(number, batches, calls)
            samples, tokens, useful_tokens = self._through(batches, calls)
            if tokens is None:
                tokens = self._find_tokens(number, batches)
            paused = (sum(pauses), max(pauses)) if pauses else (0.0, 0.0)
            self.passed.append(Step(number, excluded, samples, tokens, useful_tokens, effort, *paused, None))
        self.work.settle()

    def _timed(self, times: Sequence[tuple[float, ...] | str]) -> Columns | None:
        """Return the oldest steps of the queue with their times from the device, or with the reason of their loss.

        After an interrupt, there may be times of steps that were never queued: the first of too many are ignored.
        """
        times = times[max(0, len(times) - len(self.passed)) :]
        return Columns.from_steps([_with_times(self.passed.popleft(), seconds) for seconds in times]) if times else None

    def _early(self, times: StageTimes) -> Columns | None:
        """Return the ended steps as far as they are known. The watchdog's thread may call this: it changes no state."""
        ended = [self.ended[place] for place in range(len(times.calls))]
        steps, last = [], self._batch
        for (number, excluded, batches), seconds, calls in zip(ended, times.rows, times.calls, strict=True):
            last = batches[0] if batches else last
            # useful tokens may be on a device
            amounts = [plus(*[batch[place] for batch in batches]) for place in (0, 1)]
            samples, tokens = amounts if batches else _without(last, calls)[:2]
            steps.append(Step(number, excluded, samples, tokens, None, None, 0.0, 0.0, seconds))
        return Columns.from_steps(steps) if steps else None

    def _through(self, batches: list[Batch], calls: Calls) -> tuple[int | None, int | None, Any]:
        """Return samples, tokens and useful tokens of a step. Store its first batch for `_without`."""
        if not batches:
            return _without(self._batch, calls)
        self._batch = batches[0]
        return together(batches)

    def _find_tokens(self, number: int, batches: list[Batch], tokens: int | None = None) -> int | None:
        """Count the tokens now if the batches were read before the tensor of token ids was known."""
        if tokens is not None or not batches:
            return tokens
        if self._with_tokens is not None:
            return together([self._with_tokens(batch) for batch in batches])[1]
        if len(self._untold) < MOST_UNTOLD:
            self._untold[number] = batches
        return None

    def _efforts(
        self, numbers: Sequence[int], batches: Sequence[list[Batch]], calls: Sequence[Calls], *, alike: bool
    ) -> Sequence[StepFlops | None]:
        """Ask for each step with unknown FLOPs, because `work.of` counts these steps by reason."""
        first = self._effort(numbers[0], batches[0], calls[0])
        if alike and first is not None and not self.work.trainable_changed and calls.count(calls[0]) == len(calls):
            return (first,) * len(numbers)
        return [first, *map(self._effort, numbers[1:], batches[1:], calls[1:])]

    def _effort(self, number: int, batches: list[Batch], calls: Calls) -> StepFlops | None:
        return self.work.step_flops([batch.shape for batch in batches], calls, number)


def _alike(steps: Sequence[list[Batch]]) -> bool:
    """Compare identities and numbers of batches, not values, which may be on a device."""
    every = [*chain.from_iterable(steps)]
    return len({*map(len, steps)}) == 1 and all(map(is_, every, repeat(every and every[0])))


def _without(last: Batch, calls: Calls) -> tuple[int | None, int | None, Any]:
    """Without a new batch, a backward used an earlier one: amounts are unknown. Otherwise known ones are 0."""
    return (None, None, None) if calls.backwards else nothing(last)


def _with_times(step: Step, seconds: tuple[float, ...] | str) -> Step:
    if isinstance(seconds, str):
        return step._replace(seconds=None, excluded=seconds)
    return step._replace(seconds=seconds)
