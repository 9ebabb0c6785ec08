"""Causes of idle time of a device."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perf_callbacks.profiles import kernel_classes
from perf_callbacks.profiles.device import DeviceWork
from perf_callbacks.profiles.host import DATA, Call, Cover, Host
from perf_callbacks.profiles.intervals import Interval, length, union, without

DATA_CAUSE, COMMUNICATION, SYNC, HOST, DEVICE, UNKNOWN = CAUSES = (
    "data",
    "communication",
    "sync",
    "host",
    "device",
    "unknown",
)

SHORTEST_WAIT = 1.0
"""Microseconds for which the host must wait for the device so that the call counts as a synchronization."""

LONGEST_START = 1000.0
"""Microseconds that a device may take to start the first recorded work of a stream, once this work is launched. Longer:
the device had work from before the recording, which the trace does not show."""


@dataclass(slots=True)
class Idle:
    """Idle time in microseconds, by cause, and of cause "sync" by line."""

    by_cause: dict[str, float] = field(default_factory=dict)
    by_line: dict[str, float] = field(default_factory=dict)

    def add(self, cause: str, time: float) -> None:
        """Add idle time."""
        if time > 0:
            self.by_cause[cause] = self.by_cause.get(cause, 0.0) + time


def explain(gaps: Sequence[Interval], work: Sequence[DeviceWork], busy: Sequence[Interval], host: Host) -> Idle:
    """Divide the gaps between the work of a device by cause. `work` is in order of start.

    In the part of a gap before the launch of the next work, the device waited for the host. The host was in the
    DataLoader, or in a collective, or late. A host that has waited for the device is late by the duration of this wait:
    without the wait, the host would have queued the next work earlier by this time. So much of the following gaps has
    the cause "sync". The rest has the cause "host".

    A graph has one launch for all its kernels. So gaps within a graph are gaps between queued work once the call that
    launched the graph has returned.
    """
    found = Idle()
    if not any([call.kind in {"operation", "runtime"} for call in host.calls]):
        found.add(UNKNOWN, length(gaps))
        return found
    data = union([(call.start, call.end) for call in host.calls if DATA.match(call.name)])
    collectives = union([(call.start, call.end) for call in host.calls if _is_collective(call)])
    in_data, in_collective = Cover(data), Cover(without(collectives, data))
    waits = [*_waits(host.calls, Cover(busy), {id(one.launch): one.start for one in work if one.by_copy_engine})]
    starts = [one.start for one in work]
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
        found.add(UNKNOWN if hidden else DEVICE, gap.end - launched)
        parts = {
            DATA_CAUSE: length(in_data.within(gap.start, launched)),
            COMMUNICATION: length(in_collective.within(gap.start, launched)),
        }
        for cause, time in parts.items():
            found.add(cause, time)
        rest = max(0.0, launched - gap.start - sum(parts.values()))
        of_sync = min(late, rest)
        late -= of_sync
        found.add(SYNC, of_sync)
        found.add(HOST, rest - of_sync)
        if of_sync > 0:
            found.by_line[line] = found.by_line.get(line, 0.0) + of_sync
    return found


def _waits(calls: Iterable[Call], busy: Cover, copies: Mapping[int, float]) -> Iterable[tuple[Call, float]]:
    """Yield the calls in which the host waited while the device worked, and for how long.

    `copies` are the starts of the copies by `id` of their calls. An asynchronous call waits too if the memory of the
    host is not pinned. A call that returned before its copy began did not wait.
    """
    for call in calls:
        if call.kind != "runtime":
            continue
        copied = "Memcpy" in call.name and ("Async" not in call.name or copies.get(id(call), call.end) < call.end)
        if copied or "Synchronize" in call.name:
            time = length(busy.within(call.start, call.end))
            if time > SHORTEST_WAIT:
                yield call, time


def _line(call: Call, host: Host) -> str:
    origin = host.of(call)
    operation = origin.operations[-1].name if origin.operations else call.name
    return origin.line or operation


def _is_collective(call: Call) -> bool:
    """Return True for calls of collectives. Annotations of the user, such as "step with allreduce", are none."""
    named = call.kind == "operation" or call.name.startswith(("nccl:", "gloo:", "mpi:", "ucc:"))
    return named and kernel_classes.of_name(call.name) == kernel_classes.COMMUNICATION
