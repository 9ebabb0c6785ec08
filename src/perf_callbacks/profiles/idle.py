"""Find the causes of a device's idle time."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from perf_callbacks.profiles import kernel_classes
from perf_callbacks.profiles.device import DeviceWork
from perf_callbacks.profiles.host import DATA, Call, Host
from perf_callbacks.profiles.intervals import Interval, covered, length, union, without

DATA_CAUSE, COMMUNICATION, SYNC, HOST, DEVICE, UNKNOWN = CAUSES = (
    "data",
    "communication",
    "sync",
    "host",
    "device",
    "unknown",
)

SHORTEST_WAIT = 1.0  # microseconds that a host call waits for the device, above which it is a synchronization

LONGEST_START = 1000.0
"""Microseconds from the launch of a stream's first recorded kernel to its start, above which the device was busy with
work from before the recording."""


def explain(
    gaps: Sequence[Interval], work: Sequence[DeviceWork], busy: Sequence[Interval], host: Host
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the microseconds of each cause of idle gaps, and of each source line with the cause "sync".

    `work` must be sorted by start. Each gap is split where the host launched the next kernel: what follows is "device".
    Before it, the device waited for the host: in the DataLoader it is "data", in a collective "communication". The rest
    is "sync" up to the duration of a wait for the device, as in `loss.item()`, which delayed the next launches, and
    else "host". One call launches all kernels of a CUDA graph, so gaps between them are "device".
    """
    by_cause, by_line = defaultdict[str, float](float), defaultdict[str, float](float)
    if not any([call.kind in {"operation", "runtime"} for call in host.calls]):
        return {UNKNOWN: length(gaps)}, {}
    data = union([(call.start, call.end) for call in host.calls if DATA.match(call.name)])
    collectives = union([(call.start, call.end) for call in host.calls if _is_collective(call)])
    collectives = without(collectives, data)
    waits = [*_waits(host.calls, busy, {id(piece.launch): piece.start for piece in work if piece.by_copy_engine})]
    starts = [piece.start for piece in work]
    late, line, place = 0.0, "", 0
    for gap in gaps:
        while place < len(waits) and waits[place][0].start <= gap.start:
            call, wait = waits[place]
            if wait > late:
                late, line = wait, _line(call, host)
            place += 1
        after = bisect_left(starts, gap.end)
        following = work[after] if after < len(work) else None
        launch = None if following is None else following.launch
        launched = gap.end if launch is None else min(gap.end, max(gap.start, launch.end))
        hidden = following is not None and following.first and gap.end - launched > LONGEST_START
        in_data, in_collective = covered(data, gap.start, launched), covered(collectives, gap.start, launched)
        rest = max(0.0, launched - gap.start - in_data - in_collective)
        of_sync = min(late, rest)
        late -= of_sync
        by_cause[UNKNOWN if hidden else DEVICE] += gap.end - launched
        by_cause[DATA_CAUSE] += in_data
        by_cause[COMMUNICATION] += in_collective
        by_cause[SYNC] += of_sync
        by_cause[HOST] += rest - of_sync
        by_line[line] += of_sync
    return by_cause, by_line


def _waits(
    calls: Iterable[Call], busy: Sequence[Interval], copies: Mapping[int, float]
) -> Iterable[tuple[Call, float]]:
    """Yield each host call that waited for the busy device, with the microseconds.

    `copies` maps the `id` of a call to the start of its copy. An asynchronous copy also waits if the host memory isn't
    pinned; a call that returned before its copy began did not wait.
    """
    for call in calls:
        if call.kind != "runtime":
            continue
        copied = "Memcpy" in call.name and ("Async" not in call.name or copies.get(id(call), call.end) < call.end)
        if copied or "Synchronize" in call.name:
            time = covered(busy, call.start, call.end)
            if time > SHORTEST_WAIT:
                yield call, time


def _line(call: Call, host: Host) -> str:
    origin = host.call_site(call)
    operation = origin.operations[-1].name if origin.operations else call.name
    return origin.line or operation


def _is_collective(call: Call) -> bool:
    """A user's annotation, such as "step with allreduce", is no collective."""
    named = call.kind == "operation" or call.name.startswith(("nccl:", "gloo:", "mpi:", "ucc:"))
    return named and kernel_classes.of_name(call.name) == kernel_classes.COMMUNICATION
