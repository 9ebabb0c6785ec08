"""The work of a step in FLOPs: who asked for it, in which number format, by which kind of operation.

A FLOP is one multiplication or one addition of floating-point numbers; a multiply-accumulate is two. Only matrix
products count: matmuls, convolutions, attention. What goes element by element is left out, as everywhere in this field.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Phase = Literal["forward", "backward", "recompute", "attention_recompute", "optimizer"]
"""`recompute`: what activation checkpointing does again. `attention_recompute`: the scores that the backward of a fused
attention kernel computes again."""

Kind = Literal["matmul", "attention", "convolution"]

MODEL: tuple[Phase, ...] = ("forward", "backward")
"""What the model has to do, however it is executed."""


class Cell(NamedTuple):
    """Work of one sort."""

    phase: Phase
    dtype: str
    """Of the operands, as torch prints it; "tfloat32" where float32 is multiplied in that."""
    kind: Kind


class Effort(NamedTuple):
    """What an optimizer step took."""

    model_flops: int
    hardware_flops: int
    ideal_seconds: float | None = None
    """How long the model's work takes at peak, each number format at its own; None: unknown."""


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs by sort.

    >>> Work({Cell("forward", "float32", "matmul"): 10, Cell("recompute", "float32", "matmul"): 10}).hardware_flops
    20
    """

    cells: Mapping[Cell, int] = field(default_factory=dict)

    @property
    def model_flops(self) -> int:
        """Of forward and backward, without anything that is done a second time: the numerator of MFU."""
        return sum(flops for cell, flops in self.cells.items() if cell.phase in MODEL)

    @property
    def hardware_flops(self) -> int:
        """Of everything executed: the numerator of HFU."""
        return sum(self.cells.values())

    @property
    def by_phase(self) -> dict[str, int]:
        """FLOPs of each phase that has any."""
        return _sums((cell.phase, flops) for cell, flops in self.cells.items())

    @property
    def by_dtype(self) -> dict[str, int]:
        """Model FLOPs in each number format."""
        return _sums((cell.dtype, flops) for cell, flops in self.cells.items() if cell.phase in MODEL)

    def only(self, phase: Phase) -> "Work":
        """What was done in one phase."""
        return Work({cell: flops for cell, flops in self.cells.items() if cell.phase == phase})

    def without(self, phase: Phase) -> "Work":
        """What was done in the others."""
        return Work({cell: flops for cell, flops in self.cells.items() if cell.phase != phase})

    @staticmethod
    def sum(works: Iterable["Work"]) -> "Work":
        """All of them together."""
        total: Counter[Cell] = Counter()
        for work in works:
            total.update(work.cells)
        return Work(total)


def _sums(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for name, amount in amounts:
        total[name] += amount
    return {name: amount for name, amount in total.items() if amount}
