"""Load of the machine during runs: which runs other programs disturbed, and how much longer it may make steps."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from perf_callbacks.kernel.records.shares import NOTABLE
from perf_callbacks.kernel.records.summary_parts import CpuSummary
from perf_callbacks.report.history import finite
from perf_callbacks.report.units import percent

OTHERS = 0.25
"""Share of the CPUs that other programs used in a disturbed run."""

IDLE = 0.1
"""With this share of the CPUs idle, other programs take no CPU from the run."""

SHARED = 0.2
"""If other programs use all CPUs, steps are longer by up to this share: caches, memory and clock are shared.

For example, a small training on two busy cores needed up to 20 % more CPU time per step.
"""

MOST_SHARE = 0.99
"""A share of 1 would make `Load.effect` infinite."""

MOST_CPUS = 1_000_000
"""A machine with more CPUs counts as unknown, because its journal is damaged."""

FEWEST_QUIET = 4
"""Undisturbed runs of both sides without which a comparison leaves out no disturbed run."""


class Load(NamedTuple):
    """Shares from 0 to 1, during a run."""

    no_cpu: float | None = None
    others: float | None = None
    idle: float | None = None
    cpus: int | None = None
    load_average: float | None = None

    @classmethod
    def from_summary(cls, part: CpuSummary | None) -> "Load":
        """Values that no machine can have count as unknown."""
        if part is None:
            return cls()
        cpus = part.cpus if part.cpus is not None and 0 < part.cpus <= MOST_CPUS else None
        return cls(
            no_cpu=_share(part.no_cpu_share, 1),
            others=_share(part.other_cpus, cpus),
            idle=_share(part.idle_cpus, cpus),
            cpus=cpus,
            load_average=finite(part.load_average),
        )

    @property
    def disturbed(self) -> bool:
        return (self.no_cpu or 0.0) >= NOTABLE or (self.others or 0.0) >= OTHERS

    @property
    def effect(self) -> float:
        """Natural logarithm of the largest factor by which the load may make steps longer.

        If few CPUs are idle, the training thread may wait for other threads of the program that lack a CPU. If other
        programs then use 40 % of all CPUs, the assumed wait is at least 40 % of the time.
        """
        taken = self.no_cpu or 0.0
        others = self.others or 0.0
        if self.idle is not None and self.idle < IDLE:
            taken = max(taken, others)
        return SHARED * others - math.log1p(-min(taken, MOST_SHARE))


def undisturbed(sides: Sequence[Sequence[Load]]) -> list[list[int]]:
    """Indices of each side's undisturbed runs; of all runs, if these are too few."""
    quiet = [[place for place, load in enumerate(side) if not load.disturbed] for side in sides]
    enough = all(quiet) and sum(map(len, quiet)) >= min(FEWEST_QUIET, sum(map(len, sides)))
    return quiet if enough else [[*range(len(side))] for side in sides]


def effect(first: Sequence[Load], second: Sequence[Load]) -> float:
    """As a logarithm. Negative: the load was higher on the first side."""
    return fmean([load.effect for load in second]) - fmean([load.effect for load in first])


def described(loads: Sequence[Load]) -> str | None:
    parts = []
    waited = [load.no_cpu for load in loads if load.no_cpu is not None]
    if waited:
        parts.append(f"no CPU for {_range([percent(share) for share in (min(waited), max(waited))])} of the time")
    used = [load.others * load.cpus for load in loads if load.others is not None and load.cpus is not None]
    if used:
        cpus = {load.cpus for load in loads if load.cpus is not None}
        total = f" of {min(cpus)}" if len(cpus) == 1 else ""
        parts.append(
            f"other programs used {_range([f'{number:.1f}' for number in (min(used), max(used))])}{total} CPUs"
        )
    averages = [load.load_average for load in loads if load.load_average is not None]
    if averages:
        parts.append(f"load average {_range([f'{average:.1f}' for average in (min(averages), max(averages))])}")
    return ", ".join(parts) or None


def _range(ends: Sequence[str]) -> str:
    return ends[0] if ends[0] == ends[-1] else " to ".join(ends)


def _share(value: float | None, whole: int | None) -> float | None:
    part = finite(value)
    return None if part is None or whole is None else min(1.0, part / whole)
