"""Read torch's own record of the newest 64 compilations by torch.compile, each with its time and reason."""

import sys
from typing import Any, NamedTuple

MICRO = 1e-6


class Compilations(NamedTuple):
    """Compilations since a moment."""

    number: int
    """Number of compiled forwards. Compiled backwards are not counted, but `seconds` includes them."""
    seconds: float
    """Seconds in which at least one compilation ran."""
    repeated: int
    """Number of recompilations. Code is recompiled after a guard of earlier compiled code failed."""
    reason: str
    """First line of torch's reason for the newest recompilation; empty if unknown."""


def since(moment: float) -> Compilations:
    """Return the compilations that began after `moment`, which is a wall-clock time in seconds since 1970."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    known = [] if utils is None else [*utils.get_compilation_metrics()]  # torch 2.6 or later
    spans, number, repeated, reason = list[tuple[float, float]](), 0, 0, ""
    for one in known:
        begin, end = getattr(one, "start_time_us", None), getattr(one, "end_time_us", None)
        if begin is None or end is None or begin * MICRO < moment:
            continue
        spans.append((begin * MICRO, end * MICRO))
        number += getattr(one, "is_forward", None) is not False
        why = getattr(one, "recompile_reason", None)
        repeated += bool(why)
        reason = str(why).strip().partition("\n")[0] if why else reason
    return Compilations(number, _union(spans), repeated, reason)


def _union(spans: list[tuple[float, float]]) -> float:
    """Return the length of the union of time spans. Spans overlap, because a compilation may run within another.

    >>> _union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    seconds, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        seconds += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return seconds
