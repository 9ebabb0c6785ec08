"""Costs of our single calls on the device, in microseconds."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from gpu.bench import NEEDS_CUDA, Bench, Row, one_line
from perf_callbacks.kernel.engine.marks import END
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.process import device

COLUMNS = ("call", "minimum, us", "10th percentile, us", "median, us", "rounds of calls")

MARKS = 5
"""Marks of a usual step: four stages and its end."""


@dataclass(frozen=True)
class Call:
    """A call to be timed."""

    function: Callable[[], object]
    after: Callable[[], object] = lambda: None
    """Cleans up after a round, untimed."""
    parts: int = 1
    """Number of equal calls within the function. The time of one of them is shown."""


def calls(bench: Bench) -> Iterator[Row]:
    """The reads of the allocator, a mark and its parts, and the read of a step's events."""
    torch.ones(1, device=bench.device)  # a context, and a block in the allocator
    for name, call in bench.allowance.each([*_calls(bench)], lambda one: one[0]):
        if isinstance(call, str):
            yield name, call
            continue
        try:
            yield name, *_timed(bench, name, call)
        except Exception as error:  # noqa: BLE001 other calls may work
            yield name, one_line(error)


def _calls(bench: Bench) -> Iterator[tuple[str, Call | str]]:
    """Each call, or the reason why there is none."""
    under_test, module = device.of(bench.device), bench.module
    yield "`allocator()` of the device", Call(under_test.allocator)
    for name in ("memory_allocated", "memory_stats", "memory_stats_as_nested_dict"):
        function = getattr(module, name, None)
        call = NEEDS_CUDA if function is None else Call(partial(function, bench.device))
        yield f"torch's `{name}`", call
    began = time.perf_counter()
    timing = under_test.timing()
    probe = time.perf_counter() - began
    yield "the probe of the event timeline, once per fit", f"{probe * 1e6:.1f}"
    timeline = timing.timeline
    if timeline is None:
        yield "a mark", f"no marks on this device: {timing.unstaged or 'the host has a clock'}"
        return
    stages = (Stage.DATA, Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER)

    def marks() -> None:
        for stage in stages:
            timeline.mark(stage)
        timeline.mark(END)

    def read() -> None:
        bench.synchronize()
        timeline.ready()

    def marks_and_read() -> None:
        marks()
        read()

    yield f"{MARKS} marks, their events read, the device waited for", Call(marks_and_read)
    yield "waiting for an idle device", Call(bench.synchronize)
    yield f"a mark, of the {MARKS} of a step: check for a capture, record", Call(marks, read, MARKS)
    event = module.Event(enable_timing=True)
    yield "`record()` of an event", Call(event.record)
    yield "`query()` of an event", Call(event.query)
    capturing = getattr(module, "is_current_stream_capturing", None)
    yield "`is_current_stream_capturing()`", NEEDS_CUDA if capturing is None else Call(capturing)
    yield "`current_device()`", Call(module.current_device)
    yield "`current_stream(device)`", Call(lambda: module.current_stream(bench.device))


def _timed(bench: Bench, name: str, call: Call) -> Row:
    """Time rounds of calls by the host's clock."""
    function = call.function
    each, wanted = bench.pick((100, 20), (20, 5))
    rounds: list[float] = []
    for _ in range(each):  # warm
        function()
    call.after()
    for _ in bench.allowance.rounds(wanted, name):
        began = time.perf_counter()
        for _ in range(each):
            function()
        rounds.append((time.perf_counter() - began) / each / call.parts * 1e6)
        call.after()
        bench.synchronize()
    ordered = sorted(rounds)
    figures = [ordered[0], ordered[len(ordered) // 10], statistics.median(ordered)]
    return *[f"{figure:.2f}" for figure in figures], f"{len(rounds)} of {each}"
