"""Work of a step by module, as part of the `flops` record."""

from collections.abc import Sequence
from dataclasses import dataclass

OUTSIDE = "(no module)"
"""Path of work outside of all modules of the model, such as a loss."""

OPTIMIZER = "(optimizer)"
"""Path of matrix products in the optimizer's step."""

OTHERS = "(others)"
"""Path of all remaining modules together."""

ITSELF = "(the model itself)"
"""Shown for the model itself, whose path is empty."""

APART = (OUTSIDE, OPTIMIZER, OTHERS)
"""Paths that stand for no single place in the model."""


SUMMED_MODULES = 3  # in a summary


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleWork:
    """FLOPs, parameters and activations of a module, without its submodules. Layers of a list share one entry."""

    path: str
    """Without wrappers such as DistributedDataParallel; "" for the model itself. "*" stands for the numbers of
    layers in a list of one class. In parentheses: `OUTSIDE`, `OPTIMIZER` or `OTHERS`."""
    modules: int = 1
    """That this entry sums; 0 for work that belongs to no module."""
    forward_flops: int = 0
    backward_flops: int = 0
    """Of the operations that the module's forward ran."""
    extra_flops: int = 0
    """Executed, but no model FLOPs: recomputation, and matrix products in the optimizer."""
    parameters: int | None = 0
    """The module's own. A shared parameter counts at its first module. None: unknown."""
    activation_bytes: int | None = None
    """Tensors of the module's forward that were alive when the backward began. None: no backward ran."""

    @property
    def name(self) -> str:
        return self.path or ITSELF

    @property
    def model_flops(self) -> int:
        return self.forward_flops + self.backward_flops

    @property
    def hardware_flops(self) -> int:
        return self.model_flops + self.extra_flops


def heaviest(lines: Sequence[ModuleWork]) -> tuple[tuple[str, float], ...]:
    """Return the modules with the most executed FLOPs, and their shares of all executed FLOPs.

    >>> heaviest([ModuleWork(path="", forward_flops=3), ModuleWork(path="(no module)", modules=0, forward_flops=1)])
    (('(the model itself)', 0.75),)
    """
    total = sum(line.hardware_flops for line in lines)
    heaviest_lines = [line for line in lines if line.path not in APART and line.hardware_flops > 0]
    heaviest_lines = sorted(heaviest_lines, key=lambda line: line.hardware_flops, reverse=True)[:SUMMED_MODULES]
    return tuple([(line.name, line.hardware_flops / total) for line in heaviest_lines])
