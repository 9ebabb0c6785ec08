"""Counters that checkpoints carry from one attempt of a run to the next, and clocks that all attempts share."""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf_callbacks.kernel.clock import seconds_since_boot
from perf_callbacks.kernel.engine.steps import plus
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process import processes
from perf_callbacks.kernel.records import signs_of_life
from perf_callbacks.kernel.records.fit_records import Run

_processes: set[int] = set()  # the process ids whose first fit has begun: a fork has another id


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Times of a run up to the beginning of its current attempt. None: unknown."""

    resumed: bool
    first_unix: float | None
    """Start of the first attempt's process."""
    elapsed_seconds: float | None
    """From `first_unix` to the beginning of the current attempt."""
    productive_seconds: float | None
    """Of the run's optimizer steps before the checkpoint."""

    def state(self, run: Run, seconds: float | None, productive: float | None) -> dict[str, float | None]:
        """Return what a checkpoint stores: `seconds` are those since `run` was written, `productive` those of steps."""
        return {
            "started_unix": run.started_unix,
            "first_unix": self.first_unix,
            "elapsed_seconds": plus(self.elapsed_seconds, seconds),
            "productive_seconds": plus(self.productive_seconds, productive),
        }

    def ettr(self, seconds: float, productive: float) -> float | None:
        """Return the effective training time ratio: time of steps that were not lost, since the first process began."""
        elapsed, steps = plus(self.elapsed_seconds, seconds), plus(self.productive_seconds, productive)
        return None if not elapsed or steps is None else min(1.0, steps / elapsed)


def before(carried: Mapping[str, Any] | None, step: int, run: Run) -> Chain:
    """Return the times up to an attempt; unknown if the counters are of an earlier step, as after other training."""
    if step == 0 and carried is None:
        own = run.process_seconds or 0.0
        return Chain(resumed=False, first_unix=run.started_unix - own, elapsed_seconds=own, productive_seconds=0.0)
    counters = [number(carried or {}, name) for name in ("first_unix", "elapsed_seconds", "productive_seconds")]
    first, elapsed, productive = counters if (carried or {}).get("step") == step else (None, None, None)
    if first is None or elapsed is None or productive is None:
        return Chain(resumed=True, first_unix=None, elapsed_seconds=None, productive_seconds=None)
    now = max(elapsed, run.started_unix - first)  # the wall clock may have been set back
    return Chain(resumed=True, first_unix=first, elapsed_seconds=now, productive_seconds=productive)


def number(carried: Mapping[str, Any], name: str) -> float | None:
    """None: the checkpoint lacks the counter, or the value is impossible."""
    value = carried.get(name)
    possible = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return value if possible else None


def process_seconds() -> float | None:
    """Return the age of the process, at its first fit alone: None at a later one, and in an interactive interpreter."""
    first = os.getpid() not in _processes
    _processes.add(os.getpid())
    by_hand = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    return processes.age() if first and not by_hand else None


def uptime(path: Path = signs_of_life.BOOT_ID) -> dict[str, Any]:
    """Return the fields of `Run` about the machine's boot; none if the system doesn't show the boot."""
    with suppress(OSError, ValueError, AttributeError):
        return {"boot_id": signs_of_life.boot_id(path), "uptime_seconds": seconds_since_boot()}
    return {}
