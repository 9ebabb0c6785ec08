"""Signals of a rank, from the stages of its steps, the moments of its gradients, or its journal."""

import math
from collections.abc import Sequence

from perf_callbacks.kernel.engine.observer import Signals
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.steps import Columns
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.stragglers.local_times import LocalTime
from perf_callbacks.stragglers.peers import DATA, DEVICE, GC, LOCAL, STEAL, STEP, WORK, known, median


def of_gradients(steps: Columns, times: Sequence[LocalTime | None]) -> Signals | None:
    """Return the signals from local times up to the last gradient; None: no step has such a time."""
    timed = [time is not None and not math.isnan(time.local) for time in times]
    if not any(timed):
        return None
    unknown = LocalTime(*[math.nan] * 4)
    local, collected, steal, _ = zip(*[time or unknown for time in times], strict=True)
    signals = {LOCAL: _with_late_start(local, steal), GC: collected, DATA: _stage(steps, Stage.DATA), STEAL: steal}
    return _signals(steps, signals)


def of_stages(steps: Columns, *, sharded: bool, device: bool, alone: bool) -> Signals:
    """Return the signals from the stages of steps, if no moments of gradients are known.

    Args:
        steps: The steps.
        sharded: Ranks wait for each other in the forward too, so that only the time outside of the model is local.
        device: The stages are times on a device. Garbage collections are then part of them.
        alone: The job has a single rank, which never waits for another.
    """
    data, forward, backward, optimizer, other = [_stage(steps, stage) for stage in STAGES if stage is not Stage.GC]
    collected = steps.pause_seconds if device else _stage(steps, Stage.GC)
    parts = [data, other] if device else [data, other, collected]
    if not sharded or alone:
        parts += [forward, optimizer]
    if alone:
        parts.append(backward)
    local = [None if None in row else sum(row) for row in zip(*parts, strict=True)]
    signals: dict[str, Sequence[float | None]] = {LOCAL: local, GC: collected, DATA: data}
    if device and (alone or not sharded):
        computing = [forward, optimizer, backward] if alone else [forward, optimizer]
        signals[DEVICE] = [None if None in row else sum(row) for row in zip(*computing, strict=True)]
    return _signals(steps, signals)


def of_records(blocks: Sequence[Steps], *, device: bool) -> dict[str, list[float]]:
    """Return the signals of a single process, from the steps of its journal. The whole step is local."""
    included = [reason is None for steps in blocks for reason in steps.excluded or [None] * len(steps.step)]

    def column(name: str) -> list[float]:
        values = [value for steps in blocks for value in getattr(steps, name) or [None] * len(steps.step)]
        return [math.nan if value is None or not keep else value for value, keep in zip(values, included, strict=True)]

    found = {LOCAL: column("step_time"), GC: column("gc_time"), DATA: column("data_time")}
    if device:
        computing = zip(*[column(f"{stage}_time") for stage in ("forward", "backward", "optimizer")], strict=True)
        found[DEVICE] = [sum(row) for row in computing]
    sizes = column("tokens") if any(steps.tokens for steps in blocks) else column("samples")
    return {**found, WORK: sizes} if not all(map(math.isnan, sizes)) else found


def _with_late_start(local: Sequence[float], steal: Sequence[float]) -> Sequence[float]:
    """Add to local times the wait for a CPU after the other ranks were done, which the scheduler counts in `steal`.

    If a rank lacked a CPU for a while, but has a usual local time, it lacked the CPU at the end of the backward, and
    began the next step late. Its own clock can't show this delay, because the rank also noticed the end of the backward
    late.
    """
    usual, usual_steal = median(known(local)), median(known(steal))
    late = [lost - usual_steal - max(0.0, own - usual) for own, lost in zip(local, steal, strict=True)]
    return [own + max(0.0, more) if not math.isnan(more) else own for own, more in zip(local, late, strict=True)]


def _stage(steps: Columns, stage: Stage) -> Sequence[float | None]:
    return steps.stages[stage]


def _signals(steps: Columns, signals: Signals) -> Signals:
    """Add step times, and batch sizes if sizes vary. Set excluded steps to None."""
    found = {STEP: steps.step_seconds, **signals}
    sizes = steps.tokens if None not in steps.tokens else steps.samples
    told = [size for size in sizes if size is not None]
    if told and len(told) == len(sizes) and min(told) < max(told):
        found[WORK] = sizes
    if any(steps.excluded):
        wanted = [reason is None for reason in steps.excluded]
        found = {
            name: [value if keep else None for value, keep in zip(column, wanted, strict=True)]
            for name, column in found.items()
        }
    return found
