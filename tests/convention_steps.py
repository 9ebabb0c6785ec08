"""FLOPs of a step by the name of a convention."""

from typing import NamedTuple

from perf_callbacks.flops.calculator import conventions
from perf_callbacks.flops.calculator.conventions import ConventionWork


class StepFlops(NamedTuple):
    model: int | None
    hardware: int | None


def step_flops(architecture, batch, seq, *, convention="matmul", **options):
    work = ConventionWork(batch=batch, seq=seq, **options)
    return StepFlops(*conventions.step_flops(convention, architecture, work))
