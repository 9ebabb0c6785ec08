"""Streams that are not the usual: a side stream for the whole loop, and for its steps."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from gpu import stamps
from gpu.bench import NEEDS_CUDA, Bench, Row, attempted
from gpu.models import Case, stack


def _layers(bench: Bench) -> Case:
    """A step of some milliseconds: an idle stream can't be taken for it."""
    return stack(bench, *bench.pick((8, 4096, 4096), (2, 64, 64)))


def placement(bench: Bench) -> Iterator[Row]:
    """Times of a loop whose stream is not the default one."""
    whole, steps_only = "whole loop on a side stream", "steps on a side stream, loader not"
    for kind in bench.allowance.each((whole, steps_only)):
        yield from attempted(bench, kind, partial(_side, bench, kind, whole=kind == whole))


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
