"""Stages by our device events beside the kernels that torch.profiler attributes to the same stages."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gpu.bench import NEEDS_CUDA, Bench, Row, records, train
from gpu.models import Case, transformer
from perf_callbacks.kernel.records.fit_records import Steps

COLUMNS = (
    "stage", "kernels", "their time", "time from the last kernel of the stage before", "ours",
    "ours beside the kernels", "ours beside the time from kernel to kernel", "ours without the profiler",
)  # fmt: skip

STAGES = ("forward", "backward", "optimizer")

KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}
RANGES = {"user_annotation"}
"""Categories of a trace."""

FIRST = 10
"""Steps before the profiler runs."""


class Ranged(Case):
    """A step whose stages are ranges of the profiler."""

    def __init__(self, case: Case) -> None:
        self.__dict__ |= case.__dict__

    def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with record_function("forward"):
            loss = self.model(**batch).loss
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


@dataclass
class Kernels:
    """Kernels of one stage of one step. Times in milliseconds."""

    count: int = 0
    busy: float = 0.0
    last_end: float | None = None

    def add(self, start: float, duration: float) -> None:
        """Add a kernel."""
        self.count += 1
        self.busy += duration
        self.last_end = max(self.last_end or start, start + duration)


def profiled(bench: Bench) -> Iterator[Row]:
    """Medians over the profiled steps of a small transformer."""
    steps = bench.pick(12, 3)
    case, config = Ranged(transformer(bench)), bench.config(flops="off", gc="observe")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.cuda else [])]
    profiler = profile(activities=activities)

    def after(number: int) -> None:
        if number == FIRST:
            bench.synchronize()
            profiler.start()
        elif number == FIRST + steps:
            bench.synchronize()
            profiler.stop()

    train(bench, case, [case.batch] * (FIRST + 2 * steps + 1), config, after)
    file = bench.directory / "trace.json"
    profiler.export_chrome_trace(str(file))
    found = by_stage(read_trace(file))
    columns = _ours(records(config, Steps))
    numbers = [*range(FIRST + 1, FIRST + steps + 1)]
    yield case.name, f"{steps} steps, of which {len(found)} in the trace"
    if not any(one.count for step in found for one in step.values()):
        yield "all", f"torch.profiler recorded no kernels: {NEEDS_CUDA}"
    for stage in STAGES:
        yield stage, *_cells(found, stage, columns, numbers)


def read_trace(file: Path) -> list[Mapping[str, Any]]:
    """The events of a trace in Chrome's format."""
    events: list[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return events


def by_stage(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Kernels]]:
    """Attribute each kernel to the range in which the host launched it, on whichever thread; one entry per step.

    The backward's kernels are launched by autograd's thread while the training thread is within its range.
    """
    begins: dict[str, list[tuple[float, float]]] = {stage: [] for stage in STAGES}
    for event in events:
        if event.get("cat") in RANGES and event["name"] in begins:
            begins[event["name"]].append((event["ts"], event["ts"] + event["dur"]))
    steps = [dict(zip(STAGES, ranges, strict=True)) for ranges in zip(*map(sorted, begins.values()), strict=False)]
    found = [{stage: Kernels() for stage in STAGES} for _ in steps]
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    for event in events:
        if event.get("cat") not in KERNELS:
            continue
        moment = launched.get(event["args"].get("correlation"))
        for step, ranges in zip(found, steps, strict=True):
            for stage, (start, end) in ranges.items():
                if moment is not None and start <= moment <= end:
                    step[stage].add(event["ts"] / 1000, event["dur"] / 1000)
    return found


def between_ends(found: Sequence[Mapping[str, Kernels]], stage: str) -> list[float]:
    """Milliseconds from the last kernel of the stage before to the last kernel of this stage, in each step."""
    ends = [(name, step[name].last_end) for step in found for name in STAGES]
    return [
        end - before
        for (_, before), (name, end) in pairwise(ends)
        if name == stage and before is not None and end is not None
    ]


def _ours(blocks: Sequence[Steps]) -> dict[str, dict[int, float | None]]:
    """Our milliseconds by stage and step."""
    found: dict[str, dict[int, float | None]] = {stage: {} for stage in STAGES}
    for block in blocks:
        for stage, column in found.items():
            seconds = getattr(block, f"{stage}_time") or [None] * len(block.step)
            column.update(
                (number, None if one is None else one * 1000) for number, one in zip(block.step, seconds, strict=True)
            )
    return found


def _cells(
    found: Sequence[Mapping[str, Kernels]], stage: str, columns: Mapping[str, Mapping[int, float | None]],
    numbers: Sequence[int],
) -> Row:  # fmt: skip
    ours = _median([columns[stage].get(number) for number in numbers])
    later = _median([one for number, one in columns[stage].items() if number > numbers[-1] + 1])
    kernels = [step[stage] for step in found if step[stage].count]
    count = _median([one.count for one in kernels])
    busy, span = _median([one.busy for one in kernels]), _median(between_ends(found, stage))
    return (
        "—" if count is None else f"{count:.0f}",
        *[_milliseconds(value) for value in (busy, span, ours)],
        *["—" if ours is None or not truth else f"{ours / truth - 1:+.2%}" for truth in (busy, span)],
        _milliseconds(later),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return statistics.median(known) if known else None


def _milliseconds(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f} ms"
