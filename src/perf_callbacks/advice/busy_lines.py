"""Lines of the program that keep the training thread busy, sampled by the watchdog's thread.

A line in forward, backward or optimizer is slow code if it runs pure Python or many small operations, sleeps, or
reads a file, where the training thread should run long operations of torch.
"""

import random
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from perf_callbacks.advice.facts import TRAINERS, SlowCode
from perf_callbacks.kernel.clock import cpu_seconds_of, perf_counter, sleep
from perf_callbacks.kernel.engine.account import BEGINNING
from perf_callbacks.kernel.engine.marks import BEGIN, Pause
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process import cpu_time, stacks
from perf_callbacks.kernel.process.switch_interval import SWITCH_INTERVAL
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.shares import MAJORITY

FEWEST_LOOKS = 3
"""A line of a function is named only if the function is in at least this many samples."""

LEAST_LASTING = 0.25
"""A function is slow code only if it was slow in at least this share of its samples; a smaller share may be chance."""

LOOKS = 4

SHORTEST_SECONDS, SPREAD_SECONDS = 0.002, 0.03
"""Shortest wait before a sample, and largest extra wait: waits vary, so that samples fall anywhere in a step."""

GOLDEN = 0.618
"""The golden ratio, whose multiples spread the waits evenly."""

SETTLE_SECONDS, HELD_SECONDS = 0.000025, 0.00004
"""For these seconds, the sampling thread holds the GIL.

First it only waits: without the GIL, the training thread stops after a small operation of torch, but a large
operation goes on. Then it checks whether the training thread still uses a CPU.
"""

AGAIN_SECONDS = 0.0001
"""Between a sample and the second look at the same code. A few small operations of torch take less."""

LATE_SECONDS = 0.0005
"""The training thread ran pure Python if the second look is later than this."""

FACTS = {Stage.OTHER: "host_line", Stage.DATA: "data_line"}

COMPUTING = (Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)
"""Stages that should compute on tensors, in which a line of pure Python counts as slow code."""

Moment = tuple[int, float]


class Look(NamedTuple):
    """State in which the sampling thread finds the training thread."""

    moment: Moment
    stage: Stage
    position: stacks.Position | None
    computes: bool
    cpu_seconds: float | None = None


class Sample(NamedTuple):
    """Sample of the training thread, taken in a step that has not ended yet."""

    stage: Stage | None
    """None in the first step."""
    line: str | None
    slow: bool
    turned: float
    waits: bool = False
    """The training thread waited, for example in a sleep, and needed no CPU."""


class BusyLines(Observer):
    """Samples the training thread on the watchdog's thread. A sample counts only after its step has ended."""

    def __init__(self, recorder: Recorder) -> None:
        self._engine, self._on_device = recorder.engine, recorder.device.type != "cpu"
        self._calls = recorder.collect_calls
        self._thread, self._native_thread = threading.get_ident(), threading.get_native_id()
        self._outer = stacks.around_trainer() if recorder.run.door in TRAINERS else frozenset()
        self._cpu_seconds = cpu_seconds_of(self._thread)
        self._lines: dict[Stage | None, Counter[str | None]] = {
            stage: Counter() for stage in (None, *FACTS, *COMPUTING)
        }
        self._slow: dict[Stage | None, Counter[str]] = {stage: Counter() for stage in COMPUTING}
        self._waits: Counter[str] = Counter()
        self._step, self._seen = -1, list[Sample]()  # of the step that has not ended
        self._decided = dict[float, Stage | None]()  # stage after a backward, by the time of entry
        self._place = 0.0
        self._draw = random.Random(0)  # noqa: S311 samples are no secret
        self._before: list[cpu_time.CpuTime | None] = []
        self._ended = False
        WATCHDOG.watch(self)

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        """Keep only one sample per stage of a step, chosen by chance.

        The first samples alone would show the beginning of a stage more often than its end.
        """
        last: Moment | None = None
        number = 0
        for _ in range(LOOKS):
            if self._ended:
                return False
            self._place = (self._place + GOLDEN) % 1
            with SWITCH_INTERVAL.soon():
                sleep(SHORTEST_SECONDS + SPREAD_SECONDS * self._place)
                self._before = self._times()  # not between two looks: reading a file releases the interpreter
            look = self._look()
            if look is not None:
                following = number + 1 if look.moment == last else 1
                if self._note(look, following):
                    number, last = following, look.moment
        return not self._ended

    @override
    def closed(self) -> None:
        self._ended = True

    @override
    def marks_read(self, pairs: Sequence[Any], numbers: Sequence[int]) -> None:
        unknown = {turned for turned, stage in [*self._decided.items()] if stage is None}
        if not unknown:
            return
        turned = None
        for mark, time in zip(pairs[::2], pairs[1::2], strict=True):
            if type(mark) is not Pause:
                if turned in unknown:
                    self._decided[turned] = Stage.OPTIMIZER if mark in _OPTIMIZING else Stage.OTHER
                turned = time

    @override
    def facts(self) -> dict[str, Any]:
        if self._engine.step != self._step:
            self._count(self._engine.step)
        calls = dict(self._calls)
        return {
            **{name: _most(self._lines[stage]) for stage, name in FACTS.items()},
            "first_line": _most(self._lines[None]),
            "slow_code": {stage.name.lower(): code for stage in COMPUTING if (code := self._code(stage)) is not None},
            "host_wait": self._wait(),
            "collect_line": max(calls, key=calls.__getitem__, default="") or None,
            "collect_seconds": sum(calls.values()),
        }

    def _look(self) -> Look | None:
        """None if samples of the current step don't count."""
        engine, began = self._engine, perf_counter()
        if engine.excluded is not None and engine.excluded not in BEGINNING:
            return None
        position, step = stacks.position(self._thread, self._outer), engine.step
        stage, turned = engine.tape.turned()
        while perf_counter() - began < SETTLE_SECONDS:
            pass
        computes, cpu_seconds = self.computes(), self._cpu_seconds
        return Look((step, turned), stage, position, computes, None if cpu_seconds is None else cpu_seconds())

    def computes(self) -> bool:
        if self._cpu_seconds is None:
            return False
        began, before = perf_counter(), self._cpu_seconds()
        while (held := perf_counter() - began) < HELD_SECONDS:
            pass
        return self._cpu_seconds() - before > held / 2

    def _times(self) -> list[cpu_time.CpuTime | None]:
        return [cpu_time.read(thread) for thread in (None, self._native_thread)]

    def _idles(self, look: Look) -> bool:
        """True if the training thread has used no CPU since a look, although it could have had the GIL."""
        if look.computes or look.cpu_seconds is None or self._cpu_seconds is None:
            return False
        sleep(AGAIN_SECONDS)
        return self._cpu_seconds() == look.cpu_seconds

    def _note(self, look: Look, number: int) -> bool:
        """Return False if the look is no sample: while the training thread waits for a CPU, its line says nothing.

        `number` counts the samples of the stage from 1; an earlier sample may be kept.
        """
        if look.moment[0] != self._step:
            self._count(look.moment[0])
        stage = look.stage if self._engine.excluded is None else None
        if stage is Stage.UNDECIDED:
            self._decided[look.moment[1]] = None
        elif stage not in self._lines:
            return True
        slow = stage in {*COMPUTING, Stage.UNDECIDED} and self._is_slow(look)
        waits = self._idles(look)
        if waits and cpu_time.runnable(self._native_thread):
            return False
        line = None if look.position is None else look.position.line
        sample = Sample(stage, line, slow, look.moment[1], waits)
        if number == 1 or not self._seen:
            self._seen.append(sample)
        elif self._draw.random() * number < 1:
            self._seen[-1] = sample
        return True

    def _is_slow(self, look: Look) -> bool:
        """True if the program's code keeps the training thread longer than a few small operations would.

        - Pure Python keeps the GIL for a whole switch interval, so the sampling thread wakes up late.
        - A loop that polls for another rank waits. It is not slow.
        - In a sleep or a loop over small operations, the second look finds the same function again. It is skipped
          inside modules and optimizers, which consist of small operations, and on a device, where each takes the host
          little time.
        """
        position = look.position
        if position is None or position.in_torch or position.polls or look.computes:
            return False
        asked = perf_counter()
        sleep(AGAIN_SECONDS)
        late = perf_counter() - asked - AGAIN_SECONDS
        again = self._look()
        for before, after in zip(self._before, self._times(), strict=True):
            if before is not None and after is not None:
                late -= after.since(before).queued  # this thread, or the thread with the GIL, had no CPU
        if late > LATE_SECONDS:
            return True
        if self._on_device or position.in_model or again is None or again.computes or again.moment != look.moment:
            return False
        later = again.position
        return later is not None and not later.in_torch and function(later.line) == function(position.line)

    def _count(self, step: int) -> None:
        seen, self._step, self._seen = self._seen, step, []
        for sample in seen:
            stage = self._decided.get(sample.turned) if sample.stage is Stage.UNDECIDED else sample.stage
            if stage is None and sample.stage is not None:
                self._seen.append(sample)
                continue
            self._lines[stage][sample.line] += 1
            if sample.slow and sample.line is not None and stage in self._slow:
                self._slow[stage][function(sample.line)] += 1
            if sample.waits and sample.line is not None and stage is Stage.OTHER:
                self._waits[sample.line] += 1
        wanted = {sample.turned for sample in self._seen}
        self._decided = {turned: stage for turned, stage in self._decided.items() if turned in wanted}

    def _code(self, stage: Stage) -> SlowCode | None:
        lines, slow = self._lines[stage], self._slow[stage]
        looks = _by_function(lines)
        functions = {name: looks[name] for name, number in slow.items() if number >= LEAST_LASTING * looks[name]}
        if sum([slow[name] for name in functions]) < FEWEST_LOOKS:
            return None
        most = max(functions, key=functions.__getitem__)
        in_loop = any([most in _by_function(seen) for other, seen in self._lines.items() if other not in {None, stage}])
        return SlowCode(_busiest(lines, most), sum(functions.values()), lines.total(), self._every(), in_loop)

    def _wait(self) -> SlowCode | None:
        waits = self._waits.total()
        if waits < FEWEST_LOOKS:
            return None
        ((line, _),) = self._waits.most_common(1)
        return SlowCode(line, waits, self._lines[Stage.OTHER].total(), self._every())

    def _every(self) -> int:
        return sum([counts.total() for stage, counts in self._lines.items() if stage is not None])


_OPTIMIZING = (Stage.OPTIMIZER, BEGIN[Stage.OPTIMIZER], BEGIN[Stage.COMMUNICATION])
"""Next marks after a backward that end time of the stage optimizer."""


def _by_function(lines: Counter[str | None]) -> Counter[str]:
    functions: Counter[str] = Counter()
    for line, looks in lines.items():
        if line is not None:
            functions[function(line)] += looks
    return functions


def _most(lines: Counter[str | None]) -> str | None:
    for name, looks in _by_function(lines).most_common(1):
        if looks >= max(FEWEST_LOOKS, MAJORITY * lines.total()):
            return _busiest(lines, name)
    return None


def _busiest(lines: Counter[str | None], name: str) -> str:
    return next(line for line, _ in lines.most_common() if line is not None and function(line) == name)


def function(line: str) -> str:
    """Remove the line number from a code location.

    >>> function("train.py:31 `parse`")
    'train.py `parse`'
    """
    file, _, rest = line.partition(":")
    return f"{file} {rest.partition(' ')[2]}"
