"""Reduce a trace to a `Profile`."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path

from perf_callbacks.kernel.records.module_records import OPTIMIZER, OTHERS, OUTSIDE
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.kernel.units import MICROSECOND
from perf_callbacks.profiles import host as hosts, idle, kernel_classes
from perf_callbacks.profiles.device import DeviceWork, on_cpu, on_device, split
from perf_callbacks.profiles.heaviest import copies, operations
from perf_callbacks.profiles.host import STEP, Call
from perf_callbacks.profiles.intervals import Interval, length, shares, union, without
from perf_callbacks.profiles.trace_events import MOST_BYTES, Trace, TraceError, TraceEvent, read

MOST_MODULES = 100


def reduce_file(path: Path, most_bytes: int = MOST_BYTES) -> Profile:
    """If the file has no profile, raise `TraceError` with the path."""
    try:
        return reduce(read(path, most_bytes))
    except NoWorkError as error:
        raise TraceError(f"{printable(str(path))}: {error}") from None
    except MemoryError:
        raise TraceError(f"{printable(str(path))}: the trace needs more memory than there is") from None


class NoWorkError(TraceError):
    """A trace has neither kernels nor operations, or the work of several processes."""


def reduce(trace: Trace) -> Profile:
    devices, calls, span = split(trace.traceEvents)
    processes = {call.thread[0] for call in calls if call.kind != "python"}  # some of these have process 0
    if len(processes) > 1:  # correlations, steps and threads of several ranks have the same numbers
        raise NoWorkError(f"the trace has {len(processes)} processes. Read the trace of one rank")
    host = hosts.read(calls)
    name = max(devices, key=lambda key: (_busy(devices[key]), key), default=None)
    work = on_cpu(host) if name is None else on_device(devices[name], host)
    if not work or span is None:
        raise NoWorkError("the trace has neither kernels of a device nor operations of a CPU")
    steps = _steps(host.calls)
    window, work = _window(steps, work, span)
    for piece, share in zip(work, shares([(piece.start, piece.end, piece.rank) for piece in work]), strict=True):
        piece.share = share
    busy = union([(piece.start, piece.end) for piece in work])
    gaps = without([window], busy)
    by_cause, by_line = idle.explain(gaps, work, busy, host)
    collectives = [piece for piece in work if piece.kind == kernel_classes.COMMUNICATION]
    by_class = _sums([(piece.kind, piece.share) for piece in work])
    modules = _by_module(work) if host.has_modules else []
    heaviest, flops = operations(work)
    return Profile(
        timeline="cpu" if name is None else "device",
        device=next(
            (
                known_device.name
                for known_device in trace.deviceProperties
                if name is not None and str(known_device.id) == name[1]
            ),
            None,
        ),
        devices=len(devices) or 1,
        steps=len({_number(step) for step in steps}) or None,
        first_step=_number(steps[0]) if steps else None,
        span_seconds=(window.end - window.start) * MICROSECOND,
        busy_seconds=length(busy) * MICROSECOND,
        idle_seconds={cause: time * MICROSECOND for cause, time in _descending(by_cause)},
        class_seconds={kind: time * MICROSECOND for kind, time in _descending(by_class)},
        communication_seconds=length(union([(piece.start, piece.end) for piece in collectives])) * MICROSECOND,
        exposed_communication_seconds=by_class.get(kernel_classes.COMMUNICATION, 0.0) * MICROSECOND,
        kernels=sum([not piece.continued for piece in work]),
        sync_seconds={line: time * MICROSECOND for line, time in _descending(by_line)[:10]},
        operations=heaviest,
        flops=flops,
        copies=copies(work),
        module_seconds=_seconds([(path, piece.share) for path, piece in modules]),
        module_backward_seconds=_seconds([(path, piece.share) for path, piece in modules if piece.origin.nodes]),
    )


def _module(work: DeviceWork) -> str:
    if work.origin.in_optimizer:
        return OPTIMIZER
    return "/".join(work.origin.modules) if work.origin.modules else OUTSIDE


def _by_module(work: Sequence[DeviceWork]) -> list[tuple[str, DeviceWork]]:
    """Give each piece of work its module's name, or `OTHERS` beyond the `MOST_MODULES` with the most time."""
    paths = [(_module(piece), piece) for piece in work]
    kept = dict(_descending(_sums([(path, piece.share) for path, piece in paths]))[:MOST_MODULES])
    return [(path if path in kept else OTHERS, piece) for path, piece in paths]


def _seconds(times: Iterable[tuple[str, float]]) -> dict[str, float] | None:
    return {path: time * MICROSECOND for path, time in _descending(_sums(times))} or None


def _busy(work: Iterable[tuple[DeviceWork, TraceEvent]]) -> float:
    return length(union([(piece.start, piece.end) for piece, _ in work]))


def _steps(calls: Iterable[Call]) -> list[Call]:
    """Return the marked steps in order, without those after the last operation."""
    calls = [call for call in calls if call.kind in {"operation", "annotation"}]
    steps = [call for call in calls if STEP.match(call.name)]
    starts = [call.start for call in calls if hosts.is_work(call)]
    while steps:
        after = bisect_left(starts, steps[-1].start)
        if after < len(starts) and starts[after] < steps[-1].end:
            break
        steps.pop()
    return steps


def _number(step: Call) -> int | None:
    match = STEP.match(step.name)
    return None if match is None else int(match[1])


def _window(steps: Sequence[Call], work: Sequence[DeviceWork], span: Interval) -> tuple[Interval, list[DeviceWork]]:
    """Return the span of the profiled steps, and the device work within it, cut at its ends.

    It begins when the first step has begun and all work of earlier steps is done, and ends when the last step has ended
    and all work of the profiled steps is done. Work with an unknown launch is an earlier step's if it began before the
    first work that the profiled steps launched.
    """
    if steps:
        start, end = steps[0].start, max([step.end for step in steps])
        linked = any([piece.launch is not None for piece in work])
        first = min(
            [piece.start for piece in work if piece.launch is not None and piece.launch.start >= start], default=start
        )
        earlier = [
            piece for piece in work if (piece.start < first if piece.launch is None else piece.launch.start < start)
        ]
        begin = max([start, *[piece.end for piece in earlier if piece.launch is not None or linked]])
        kept = [piece for piece in work if (piece.launch or piece).start < end and piece.end > begin]
        window = Interval(begin, max([begin, end, *[piece.end for piece in kept if piece.launch is not None]]))
    else:
        window, kept = span, [*work]
    for piece in kept:
        piece.start, piece.end = max(piece.start, window.start), min(piece.end, window.end)
    return window, [piece for piece in kept if piece.end > piece.start]


def _sums(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, time in times:
        sums[name] = sums.get(name, 0.0) + time
    return sums


def _descending(times: dict[str, float]) -> list[tuple[str, float]]:
    return sorted([item for item in times.items() if item[1] > 0], key=lambda item: (-item[1], item[0]))
