"""Read torch's own record of the newest 64 compilations by torch.compile, each with its time and reason."""

import sys
from typing import Any, NamedTuple

from perf_callbacks.kernel.units import MICROSECOND
from perf_callbacks.profiles import intervals


class Compilations(NamedTuple):
    """Compilations since a moment."""

    number: int
    """Compiled forwards; `seconds` includes compiled backwards."""
    seconds: float
    """Overlapping compilations count once."""
    repeated: int
    """Recompilations, after a guard of earlier compiled code failed."""
    reason: str
    """First line of torch's reason for the newest recompilation; empty if unknown."""


def since(moment: float) -> Compilations:
    """`moment` is in seconds since 1970."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    metrics = [] if utils is None else utils.get_compilation_metrics()  # torch 2.6 or later
    timed = [row for row in metrics if getattr(row, "start_time_us", None) and getattr(row, "end_time_us", None)]
    compilations = [row for row in timed if row.start_time_us * MICROSECOND >= moment]
    spans = [(row.start_time_us, row.end_time_us) for row in compilations]  # a compilation may run within another
    reasons = [str(row.recompile_reason) for row in compilations if getattr(row, "recompile_reason", None)]
    return Compilations(
        number=sum([getattr(row, "is_forward", None) is not False for row in compilations]),
        seconds=intervals.length(intervals.union(spans)) * MICROSECOND,
        repeated=len(reasons),
        reason=reasons[-1].strip().partition("\n")[0] if reasons else "",
    )
