"""Signals of a rank, from the stages of its steps, from its local times, or from its journal."""

import math
from collections.abc import Sequence

from perf_callbacks.kernel.engine.observer import Signals
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import Columns
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.stragglers.local_times import LocalTime
from perf_callbacks.stragglers.peers import DATA, DEVICE, GC, LOCAL, STEAL, STEP, WORK, known, median


def of_local_times(steps: Columns, times: Sequence[LocalTime | None]) -> Signals:
    """Return no signals if no step has a local time."""
    unknown = LocalTime(*[math.nan] * 5)
    local, collected, data, steal, _ = zip(*[time or unknown for time in times], strict=True)
    if all(map(math.isnan, local)):
        return {}
    return _signals(steps, {LOCAL: _with_late_start(local, steal), GC: collected, DATA: data, STEAL: steal})


def of_stages(steps: Columns, *, sharded: bool) -> Signals:
    """Return the signals of a rank that computes on a device, from the times of its stages.

    Waits within the backward are unknown: it is no local time. With `sharded` parameters, so are forward and optimizer.
    """
    computing = [] if sharded else [Stage.FORWARD, Stage.OPTIMIZER]
    signals: dict[str, Sequence[float | None]] = {
        LOCAL: _sums(steps, Stage.DATA, Stage.OTHER, *computing),
        GC: steps.pause_seconds,
        DATA: steps.stages[Stage.DATA],
    }
    if not sharded:
        signals[DEVICE] = _sums(steps, *computing)
    return _signals(steps, signals)


def of_records(blocks: Sequence[Steps], *, device: bool) -> dict[str, list[float]]:
    """Return the signals of a single process. The whole step counts as local time."""
    included = [reason is None for steps in blocks for reason in steps.excluded or [None] * len(steps.step)]

    def column(name: str) -> list[float]:
        values = [value for steps in blocks for value in getattr(steps, name) or [None] * len(steps.step)]
        return [math.nan if value is None or not keep else value for value, keep in zip(values, included, strict=True)]

    columns = {LOCAL: column("step_time"), GC: column("gc_time"), DATA: column("data_time")}
    if device:
        computing = zip(*[column(f"{stage}_time") for stage in ("forward", "backward", "optimizer")], strict=True)
        columns[DEVICE] = [sum(row) for row in computing]
    sizes = column("tokens") if any(steps.tokens for steps in blocks) else column("samples")
    return {**columns, WORK: sizes} if not all(map(math.isnan, sizes)) else columns


def _with_late_start(local: Sequence[float], steal: Sequence[float]) -> Sequence[float]:
    """Add the delay of a rank without a CPU at the backward's end: only the scheduler counts it, in `steal`."""
    usual, usual_steal = median(known(local)), median(known(steal))
    late = [lost - usual_steal - max(0.0, own - usual) for own, lost in zip(local, steal, strict=True)]
    return [own + max(0.0, delay) if not math.isnan(delay) else own for own, delay in zip(local, late, strict=True)]


def _sums(steps: Columns, *stages: Stage) -> list[float | None]:
    rows = zip(*[steps.stages[stage] for stage in stages], strict=True)
    return [None if None in row else sum(row) for row in rows]


def _signals(steps: Columns, signals: Signals) -> Signals:
    """Add step times, and batch sizes if sizes vary. Excluded steps are unknown."""
    columns = {STEP: steps.step_seconds, **signals}
    sizes = steps.tokens if None not in steps.tokens else steps.samples
    known_sizes = [size for size in sizes if size is not None]
    if known_sizes and len(known_sizes) == len(sizes) and min(known_sizes) < max(known_sizes):
        columns[WORK] = sizes
    if any(steps.excluded):
        wanted = [reason is None for reason in steps.excluded]
        columns = {
            name: [value if keep else None for value, keep in zip(column, wanted, strict=True)]
            for name, column in columns.items()
        }
    return columns
