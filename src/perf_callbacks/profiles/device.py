"""Split the events of a trace into work on devices and calls of host threads."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from perf_callbacks.profiles import host as hosts, kernel_classes
from perf_callbacks.profiles.host import NOWHERE, Call, CallSite, Host
from perf_callbacks.profiles.intervals import Interval
from perf_callbacks.profiles.trace_events import NO_ARGUMENTS, TraceEvent, number

_WORK = {
    "kernel": False,
    "gpu_memcpy": True,
    "gpu_memset": True,
    "concurrent_kernel": False,
}
"""Trace categories of work on a device; True if a copy engine does it."""

_HOST = {"cpu_op": "operation", "user_annotation": "annotation", "python_function": "python"}

MOST_MICROSECONDS = 1e18  # an event whose start or duration exceeds this is damaged, and is left out


@dataclass(slots=True, eq=False)
class DeviceWork:
    """Kernel, copy or collective on a device. On a CPU: part of an operation, without nested ones."""

    start: float
    end: float
    name: str
    by_copy_engine: bool = False
    stream: tuple[str, str] = ("", "")
    origin: CallSite = NOWHERE
    launch: Call | None = None
    first: bool = False  # True if the trace shows no earlier work of the stream
    continued: bool = False  # True for parts of a CPU operation but the first
    kind: str = kernel_classes.OTHER
    share: float = 0.0  # microseconds of the device's busy time that count for this work

    @property
    def rank(self) -> int:
        """Among work that runs at once: 0 computation, 1 collectives, 2 copy engines."""
        return 2 if self.by_copy_engine else int(self.kind == kernel_classes.COMMUNICATION)

    @property
    def order(self) -> tuple[float, float, tuple[str, str], str, float]:
        return self.start, self.end, self.stream, self.name, math.inf if self.launch is None else self.launch.end


Devices = dict[tuple[str, str], list[tuple[DeviceWork, TraceEvent]]]  # by process id and number of the device


def split(events: Iterable[TraceEvent]) -> tuple[Devices, list[Call], Interval | None]:
    """Leave out events with impossible times. The interval spans all events except Python functions."""
    devices: Devices = {}
    calls = list[Call]()
    low, high = float("inf"), float("-inf")
    for event in events:
        if event.ph != "X" or event.cat is None:
            continue
        start, duration = number(event.ts), number(event.dur)
        if start is None or duration is None or not 0 <= duration < MOST_MICROSECONDS > abs(start):
            continue
        category, name = event.cat, str(event.name)
        if category in _WORK:
            arguments = event.args or NO_ARGUMENTS
            device = (str(event.pid), str(event.pid if arguments.device is None else arguments.device))
            work = DeviceWork(start, start + duration, name, _WORK[category], (str(event.pid), str(event.tid)))
            devices.setdefault(device, []).append((work, event))
        else:
            kind = _HOST.get(category) or ("runtime" if category.endswith(("runtime", "driver")) else None)
            if kind is None:
                continue
            if kind in {"operation", "annotation"} and name.startswith(hosts.MODULE):
                kind = "module"
            thread = (str(event.pid), str(event.tid))
            correlation = event.args.correlation if event.args is not None and kind == "runtime" else None
            calls.append(
                Call(start, start + duration, name, kind, thread, event.args or NO_ARGUMENTS, _id(correlation))
            )
            if kind == "python":  # begins before the profiler and ends after
                continue
        low, high = min(low, start), max(high, start + duration)
    return devices, calls, Interval(low, high) if low < high else None


def on_device(work: Iterable[tuple[DeviceWork, TraceEvent]], host: Host) -> list[DeviceWork]:
    """Find class and launching call of device work, and sort it by start."""
    launches = {call.correlation: call for call in host.calls if call.kind == "runtime" and call.correlation}
    operations = [call for call in host.calls if call.kind == "operation"]
    by_id = {_id(call.arguments.external_id) or 0: call for call in operations}
    linked = list[DeviceWork]()
    for piece, event in work:
        arguments = event.args or NO_ARGUMENTS
        piece.launch = launches.get(_id(arguments.correlation) or 0)
        number_of_call = _id(arguments.external_id)
        outside = by_id.get(number_of_call) if number_of_call else None
        piece.origin = host.call_site(piece.launch)
        if not piece.origin.operations and outside is not None:
            piece.origin = host.call_site(outside)
        piece.kind = _kind(piece)
        linked.append(piece)
    linked.sort(key=attrgetter("order"))
    streams = set[tuple[str, str]]()
    for piece in linked:
        piece.first = piece.stream not in streams
        streams.add(piece.stream)
    return linked


def on_cpu(host: Host) -> list[DeviceWork]:
    """Operations in a DataLoader are left out."""
    seen, pieces = set[int](), list[DeviceWork]()
    for call, (start, end) in host.self_times:
        origin = host.call_site(call)
        if origin.in_data:
            continue
        piece = DeviceWork(start, end, call.name, stream=call.thread, origin=origin, continued=id(call) in seen)
        seen.add(id(call))
        piece.kind = _kind(piece)
        pieces.append(piece)
    return sorted(pieces, key=attrgetter("order"))


def _kind(work: DeviceWork) -> str:
    if work.by_copy_engine:
        return kernel_classes.COPY
    names = [call.name for call in work.origin.operations]
    return kernel_classes.of_kernel(work.name, names, in_optimizer=work.origin.in_optimizer)


def _id(value: object) -> int | None:
    identity = number(value)
    return None if identity is None else int(identity)
