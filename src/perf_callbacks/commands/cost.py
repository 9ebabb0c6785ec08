"""`perf-callbacks check --cost`: measure how much time the callback adds on this machine."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.launch.cost import processes
from perf_callbacks.launch.cost.turns import Cost
from perf_callbacks.report.layout import wrapped

EXPLAINED = (
    "Medians of turns with the callback against the turns before and after, with 95 % intervals. The step is a step "
    "without the callback, which the time is added to: the 10th percentile, since other programs disturb quick steps "
    "least. The control compares two turns without the callback: if zero lies outside, the machine was too busy. CPU "
    "time includes work that the callback does in few steps. Once per run: the start, the first 320 steps, in some of "
    "which FLOPs are counted, and the end."
)


def run(seconds: float, *, as_json: bool) -> int:
    """Measure and print the cost for each installed integration."""
    if not math.isfinite(seconds) or seconds <= 0:
        raise ConfigError("--cost: seconds must be positive")
    costs = [*processes.measure(processes.installed(), seconds)]
    if as_json:
        print(json.dumps([asdict(one) for one in costs], indent=2, allow_nan=False))
        return 0
    print("\n".join([*processes.table(costs), ""]))
    most = max(max(one.step.high, one.cpu.high) for one in costs)
    said = [f"A step of 100 ms takes at most {most / 0.1:.3%} longer by these figures.", *_doubts(costs), EXPLAINED]
    print("\n".join([line for text in said for line in wrapped(text, indent="", width=terminal.columns())]))
    return 0


def _doubts(costs: Sequence[Cost]) -> list[str]:
    """Return a sentence that names the integrations whose figures can't be trusted, or an empty list."""
    bad = [one.integration for one in costs if not one.control.low <= 0 <= one.control.high]
    return [f"The machine was too busy to measure {' and '.join(bad)}: its control excludes zero."] if bad else []
