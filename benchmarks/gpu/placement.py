"""Streams and devices that are not the usual: a side stream, a device that is not the current one, two devices."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch

from gpu import stamps
from gpu.bench import NEEDS_CUDA, NEEDS_TWO, Bench, Row, attempted, records
from gpu.models import Case, Halves, stack
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.kernel.records.machine_records import Memory

GB = 1e9


def _layers(bench: Bench) -> Case:
    """A step of some milliseconds: an idle stream can't be taken for it."""
    return stack(bench, *bench.pick((8, 4096, 4096), (2, 64, 64)))


def placement(bench: Bench) -> Iterator[Row]:
    """Times of a loop whose stream or device is not the default one."""
    whole, steps_only, other = "whole loop on a side stream", "steps on a side stream, loader not", "other device"
    for kind in bench.allowance.each((whole, steps_only, other)):
        rows = partial(_other_device, bench) if kind == other else partial(_side, bench, kind, whole=kind == whole)
        yield from attempted(bench, kind, rows)


def _side(bench: Bench, kind: str, *, whole: bool) -> Iterator[Row]:
    """A loop on a side stream, with or without its loader."""
    if not bench.cuda:
        yield kind, f"{NEEDS_CUDA}: the next rows are from the default stream"
    side = side_stream(bench)
    with side() if whole else nullcontext():
        yield from _times(bench, kind, nullcontext if whole else side)


def side_stream(bench: Bench) -> Callable[[], AbstractContextManager[object]]:
    """A function that makes a context in which a side stream is the current one."""
    if not bench.cuda:
        return nullcontext
    stream = torch.cuda.Stream(bench.device)
    stream.wait_stream(torch.cuda.current_stream(bench.device))
    return lambda: torch.cuda.stream(stream)


def _times(
    bench: Bench, kind: str, around: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Iterator[Row]:
    case = _layers(bench)
    bench.synchronize()  # weights and batch are ready for any stream
    noted, config, summary = stamps.stamped(bench, case, bench.pick(40, 6), around)
    lost = "—" if summary is None else f"{summary.lost_steps} of {summary.steps}"
    yield kind, "lost; clock", "", f"{lost}; {stamps.clock(config)}"
    yield from stamps.times(bench, noted, config, kind)


def _other_device(bench: Bench) -> Iterator[Row]:
    """A model on the second device, while the first one is current."""
    if bench.second is None:
        yield "model on the second device, first one current", NEEDS_TWO
        return
    there = replace(bench, device=bench.second, second=bench.device)
    with torch.cuda.device(bench.device) if bench.cuda else nullcontext():
        yield from _times(there, f"model on {there.device}, {bench.device} current")


COLUMNS = ("what", "truth", "ours", "difference")


def two_devices(bench: Bench) -> Iterator[Row]:
    """Memory and times of a model with one half on each of two devices."""
    if bench.second is None:
        yield "one model over two devices", NEEDS_TWO
        return
    layers, wide, rows = bench.pick((8, 4096, 4096), (4, 64, 64))
    places = bench.device, bench.second
    model = Halves(layers, wide, places)
    case = Case("two halves", model, {"x": torch.randn(rows, wide, device=bench.device)})
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) / GB
    noted, config, summary = stamps.stamped(bench, case, bench.pick(20, 6))
    run, memory = records(config, Run)[0], records(config, Memory)
    yield "devices of the record; clock", "2", f"{run.devices}; {stamps.clock(config)}"
    yield "devices of the parameters", "2", str(len(device.of_model(model, bench.device)))
    yield "weights, GB", f"{weights:.4f}", *stamps.beside(weights, memory[0].weights_gb if memory else None, 1)
    state = sum(
        value.numel() * value.element_size() for state in case.optimizer.state.values() for value in state.values()
    )
    ours = memory[0].optimizer_gb if memory else None
    yield "state of the optimizer, GB", f"{state / GB:.4f}", *stamps.beside(state / GB, ours, 1)
    peaks = [device.of(place).allocator() for place in places]
    known = [one.peak_bytes for one in peaks if one is not None]
    if len(known) == len(places):
        peak = sum(known) / GB
        yield (
            "peak, GB, by both allocators",
            f"{peak:.4f}",
            *stamps.beside(peak, memory[0].peak_gb if memory else None, 1),
        )
    else:
        yield "peak, GB, by both allocators", "these devices have no allocator's statistics"
    yield "lost steps", "0", "—" if summary is None else str(summary.lost_steps)
    for _, what, *cells in stamps.times(bench, noted, config):
        yield what, *cells[:3]
