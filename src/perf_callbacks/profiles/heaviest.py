"""The operations and copies that take the most time."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from perf_callbacks.kernel.records.profile_record import ProfiledCopy, ProfiledOperation
from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.kernel.units import MICROSECOND
from perf_callbacks.profiles import kernel_classes, operation_flops
from perf_callbacks.profiles.device import DeviceWork
from perf_callbacks.profiles.host import Call

MOST_HEAVIEST = 10

_COPYING = frozenset(
    f"aten::{name}" for name in ("contiguous", "to", "_to_copy", "clone", "copy_", "reshape", "type_as", "pin_memory")
)

_DIRECTIONS = {"HtoD": "host to device", "DtoH": "device to host", "DtoD": "device to device"}

_FORMATS = {
    "float": "float32",
    "double": "float64",
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
}


def operations(work: Iterable[DeviceWork]) -> tuple[tuple[ProfiledOperation, ...], float | None]:
    """Return the `MOST_HEAVIEST` longest operations, added up by name and input shapes, and the FLOPs of all."""
    heaviest, counted = list[ProfiledOperation](), set[int]()
    groups = [(_seconds(group), key, group) for key, group in _groups([(_operation(piece), piece) for piece in work])]
    groups.sort(key=lambda group: (-group[0], group[1]))
    for seconds, (name, shapes), group in groups:
        kinds: dict[str, float] = {}
        for piece in group:
            kinds[piece.kind] = kinds.get(piece.kind, 0.0) + piece.share
        heaviest.append(
            ProfiledOperation(
                name=name,
                kind=max(kinds, key=lambda kind: (kinds[kind], kind)),
                calls=_calls(group),
                seconds=seconds,
                shapes=shapes or None,
                flops=_flops(group, counted),
            )
        )
    flops = [operation.flops for operation in heaviest if operation.flops is not None]
    longest = [operation for operation in heaviest if operation.seconds > 0][:MOST_HEAVIEST]
    return tuple(longest), sum(flops) if flops else None


def _flops(group: Iterable[DeviceWork], counted: set[int]) -> float | None:
    """Count an operation with kernels in several groups once, in the group with the longest time."""
    total: float | None = None
    for piece in group:
        call, flops = operation_flops.innermost(piece.origin.operations, piece.kind)
        if call is not None and flops is not None and id(call) not in counted:
            counted.add(id(call))
            total = (total or 0.0) + flops
    return total


def copies(work: Iterable[DeviceWork]) -> tuple[ProfiledCopy, ...]:
    """Return the `MOST_HEAVIEST` longest copies, added up by kind, operation and source line."""
    keyed = [(_copy(piece), piece) for piece in work]
    heaviest = [
        ProfiledCopy(kind=kind, operation=name, line=line or None, calls=_calls(group), seconds=_seconds(group))
        for (kind, name, line), group in _groups([(key, piece) for key, piece in keyed if key is not None])
    ]
    heaviest.sort(key=lambda copy: (-copy.seconds, copy.kind, copy.operation, copy.line or ""))
    return tuple([copy for copy in heaviest if copy.seconds > 0][:MOST_HEAVIEST])


def _groups(keyed: Iterable[tuple[tuple[str, ...], DeviceWork]]) -> list[tuple[tuple[str, ...], list[DeviceWork]]]:
    groups: dict[tuple[str, ...], list[DeviceWork]] = {}
    for key, piece in keyed:
        groups.setdefault(key, []).append(piece)
    return [*groups.items()]


def _calls(group: Sequence[DeviceWork]) -> int:
    return max(1, sum([not piece.continued for piece in group]))


def _seconds(group: Iterable[DeviceWork]) -> float:
    return sum([piece.share for piece in group]) * MICROSECOND


def _operation(work: DeviceWork) -> tuple[str, str]:
    """Return name and input shapes of the innermost operation. A collective, or work of none, has its kernel's name."""
    if not work.origin.operations or work.kind == kernel_classes.COMMUNICATION:
        return re.split(r"[(<]", work.name.removeprefix("void "))[0][:LONGEST_TEXT] or work.name[:LONGEST_TEXT], ""
    call = work.origin.operations[0]
    return call.name[:LONGEST_TEXT], _shapes(call)[:LONGEST_TEXT]


def _shapes(call: Call) -> str:
    shapes = call.arguments.shapes if isinstance(call.arguments.shapes, list) else []
    return ", ".join([_shape(shape) for shape in shapes if isinstance(shape, list) and shape])


def _shape(shape: list[Any]) -> str:
    if isinstance(shape[0], list):
        return f"[{', '.join([_shape(part) for part in shape if isinstance(part, list) and part])}]"
    return "x".join(map(str, shape))


def _copy(work: DeviceWork) -> tuple[str, str, str] | None:
    """Return kind, operation and source line of a copy, or None if the work copies no tensor."""
    if work.kind != kernel_classes.COPY:
        return None
    chain = list[Call]()
    for call in work.origin.operations:
        if call.name not in _COPYING:
            break
        chain.append(call)
    if work.by_copy_engine:
        direction = re.search("HtoD|DtoH|DtoD", work.name)
        if direction is None:
            return None
        outermost = chain[-1] if chain else next(iter(work.origin.operations), None)
        kind, name = _DIRECTIONS[direction[0]], work.name if outermost is None else outermost.name
    elif chain:
        kind, name = _conversion(chain), chain[-1].name
    else:
        return None
    return kind, name[:LONGEST_TEXT], (work.origin.line or "")[:LONGEST_TEXT]


def _conversion(chain: Iterable[Call]) -> str:
    for call in chain:
        types = call.arguments.types
        if call.name == "aten::copy_" and isinstance(types, list) and len(types) > 1 and types[0] != types[1]:
            target, source = [_FORMATS.get(str(dtype), str(dtype)[:20]) for dtype in types[:2]]
            return f"{source} to {target}"
    return "layout"
