"""Stand-ins for the clock, for an accelerator and for a fit, driven by hand, and findings of a verdict."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType

from perf_callbacks.kernel.batches.reader import Batch
from perf_callbacks.kernel.engine.engine import Engine
from perf_callbacks.kernel.engine.marks import Pause
from perf_callbacks.kernel.engine.observer import Observers
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.process.event_timeline import EventTimeline
from perf_callbacks.kernel.records.fit_records import Finding, Run, Steps


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeStream:
    """An accelerator's stream: work is queued at once and done later, by `run`, or by a clock if an event is asked."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock, self.now, self.waited, self.capturing = clock, 0.0, 0, False
        self._queue: deque = deque()

    def work(self, seconds: float) -> None:
        self._queue.append(seconds)

    def event(self) -> "FakeEvent":
        return FakeEvent(self)

    def enqueue(self, event: "FakeEvent") -> None:
        self._queue.append((event, event.recorded))

    def run(self, late: Mapping[int, float] = MappingProxyType({}), until: float = math.inf) -> None:
        """Do everything that was queued. `late`: seconds by which some events of these differ, by their number."""
        number = 0
        while self._queue:
            item = self._queue[0]
            if isinstance(item, float | int):
                if self.now + item > until:
                    return
                self.now += item
            elif item[0].recorded == item[1]:  # else it was recorded again since, and only that counts
                item[0].at = self.now + late.get(number, 0.0)
            number += isinstance(item, tuple)
            self._queue.popleft()


class FakeEvent:
    """As `torch.cuda.Event(enable_timing=True)`: times in milliseconds, an error for what is not done."""

    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self.at: float | None = None
        self.recorded = 0

    def record(self) -> None:
        assert not self._stream.capturing, "an event is recorded in a capture"
        self.at = None
        self.recorded += 1
        self._stream.enqueue(self)

    def query(self) -> bool:
        assert not self._stream.capturing, "an event is asked for in a capture"
        if self._stream.clock is not None:
            self._stream.run(until=self._stream.clock())
        return self.at is not None

    def synchronize(self) -> None:
        self._stream.waited += 1
        raise AssertionError("an event is waited for")

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        if self.at is None or end_event.at is None:
            raise RuntimeError("Both events must be recorded and done")
        return (end_event.at - self.at) * 1000


def a_run(**changes):
    """The record that opens a fit."""
    usual = {
        "run_id": "a1",
        "attempt": 1,
        "step": 0,
        "rank": 0,
        "world_size": 1,
        "device": "cpu",
        "timeline": "host",
        "door": "loop",
        "versions": {"perf_callbacks": "1.0"},
        "config": {"gc": "sync"},
        "from_env": (),
        "started_unix": 0.0,
    }
    return Run(**usual | changes)


class Fit:
    """A fit without a framework: an engine, the time that it is told, and the records that it hands out.

    Lengths in halves, quarters and so on are exact as floats.
    """

    def __init__(self, run=None, **options):
        self.now = 1000.0
        self.records = []
        self.number = 0
        self.engine = Engine(run or a_run(), self.records.append, **options)
        self.engine.start(self.now)

    def turn(self, mark):
        self.engine.tape.write((mark, self.now))

    def spend(self, stage, seconds):
        self.turn(Stage[stage.upper()])
        self.now += seconds

    def feed(self, samples=None, tokens=None, useful_tokens=None):
        self.engine.batch(Batch(samples, tokens, useful_tokens, ()))

    def pause(self, seconds, *, generation=0, collected=0, automatic=True, here=True):
        start, self.now = self.now, self.now + seconds
        self.engine.pause(Pause(generation, start, seconds, collected, automatic, here))

    def span(self, kind, seconds):
        self.engine.begin_span(kind, self.now)
        self.now += seconds
        self.engine.end_span(self.now)

    def end_step(self):
        self.number += 1
        self.engine.end_step(self.number, self.now)

    def step(self, **stages):
        """A whole step, stage by stage."""
        for stage, seconds in stages.items():
            self.spend(stage, seconds)
        self.end_step()

    def of(self, kind):
        self.engine.step_reader.collect()
        return [record for record in self.records if isinstance(record, kind)]

    def steps(self):
        """The steps that were handed out, each as a mapping; what is unknown of all of them is left out."""
        self.engine.flush(self.now)
        blocks = [{name: column for name, column in asdict(block).items() if column} for block in self.of(Steps)]
        return [dict(zip(block, step, strict=True)) for block in blocks for step in zip(*block.values(), strict=True)]


class DeviceFit(Fit):
    """A fit whose stages queue work on a stream, faster than the stream does it."""

    def __init__(self, *, capacity=4096, **options):
        self.stream = FakeStream()
        self.made = 0
        timeline = EventTimeline(self.event, capacity=capacity, capturing=lambda: self.stream.capturing)
        super().__init__(device=timeline, **options)

    def event(self):
        self.made += 1
        return self.stream.event()

    def spend(self, stage, seconds):
        super().spend(stage, 0.0625)
        self.stream.work(seconds)


class FakeRanks:
    """The other ranks of a fit, from which a test lets it hear."""

    def __init__(self, window=None, *, signals=False):
        self.window, self.signals, self.latest = window, signals, None
        self.offered, self.finished = [], []

    def offer(self, part):
        self.offered.append(part)

    def take(self):
        finished, self.finished = self.finished, []
        return finished


def observed_by(*some):
    """The observers of a fit."""
    observers = Observers()
    for observer in some:
        observers.add(observer)
    return observers


STEP = {"data": 0.25, "forward": 0.5, "backward": 1.0, "optimizer": 0.125, "other": 0.125}
"""Seconds of the stages of a step of two seconds."""

LOADER = Finding(
    cause="data",
    share=0.45,
    evidence="Waiting for data took 46% of the run: num_workers=0",
    remedy="DataLoader(num_workers=2)",
)
OPTIMIZER = Finding(
    cause="optimizer",
    share=0.03,
    evidence="The optimizer took 5% of the run: AdamW updates 430 tensors one by one",
    remedy="torch.optim.AdamW(..., fused=True)",
)
BLOCKING = Finding(
    cause="sync",
    share=None,
    evidence="CUDA_LAUNCH_BLOCKING=1 waits for each kernel",
    remedy="unsetting CUDA_LAUNCH_BLOCKING",
)


STAGES = {"data": 0.25, "forward": 0.5, "backward": 1.0, "optimizer": 0.25}
"""Seconds of the stages of a step on a stream."""


def times(step):
    """The times of a step that are not 0, by stage."""
    return {name.removesuffix("_time"): value for name, value in step.items() if name.endswith("_time") and value}
