"""Read torch's own record of the newest 64 compilations by torch.compile, each with its time and reason."""

import sys
from typing import Any, NamedTuple

from perf_callbacks.profiles import intervals

MICRO = 1e-6


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
    known = [] if utils is None else utils.get_compilation_metrics()  # torch 2.6 or later
    timed = [one for one in known if getattr(one, "start_time_us", None) and getattr(one, "end_time_us", None)]
    found = [one for one in timed if one.start_time_us * MICRO >= moment]
    spans = [(one.start_time_us, one.end_time_us) for one in found]  # a compilation may run within another
    reasons = [str(one.recompile_reason) for one in found if getattr(one, "recompile_reason", None)]
    return Compilations(
        number=sum([getattr(one, "is_forward", None) is not False for one in found]),
        seconds=intervals.length(intervals.union(spans)) * MICRO,
        repeated=len(reasons),
        reason=reasons[-1].strip().partition("\n")[0] if reasons else "",
    )
