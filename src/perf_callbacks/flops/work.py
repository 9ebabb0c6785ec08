"""Work of a step in FLOPs, by phase, number format and kind of operation.

A FLOP is one multiplication or one addition of floating-point numbers; a multiply-accumulate is two. Only matrix
products count: matmuls, convolutions, attention. Elementwise operations are left out, as in all published figures.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Phase = Literal["forward", "backward", "recompute", "attention_recompute", "optimizer"]
"""Phase of an operation. `recompute`: run again in the backward, mostly by activation checkpointing.
`attention_recompute`: scores that the backward of a fused attention kernel computes again."""

Kind = Literal["matmul", "attention", "convolution"]

MODEL: tuple[Phase, ...] = ("forward", "backward")
"""Phases of the model FLOPs, independent of how they are executed."""


class Cell(NamedTuple):
    """Phase, number format and kind of some work."""

    phase: Phase
    dtype: str
    """Number format of the operands, in torch's spelling; "tfloat32" if torch multiplies float32 in TF32."""
    kind: Kind


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs by phase, number format and kind.

    >>> Work({Cell("forward", "float32", "matmul"): 10, Cell("recompute", "float32", "matmul"): 10}).hardware_flops
    20
    """

    cells: Mapping[Cell, int] = field(default_factory=dict)

    @property
    def model_flops(self) -> int:
        """FLOPs of forward and backward, without recomputation: the numerator of MFU."""
        return sum(flops for cell, flops in self.cells.items() if cell.phase in MODEL)

    @property
    def hardware_flops(self) -> int:
        """All executed FLOPs: the numerator of HFU."""
        return sum(self.cells.values())

    @property
    def by_phase(self) -> dict[str, int]:
        """FLOPs by phase; phases without FLOPs are left out."""
        return _sums((cell.phase, flops) for cell, flops in self.cells.items())

    @property
    def by_dtype(self) -> dict[str, int]:
        """Model FLOPs in each number format."""
        return _sums((cell.dtype, flops) for cell, flops in self.cells.items() if cell.phase in MODEL)

    def of(self, *, optimizer: bool) -> "Work":
        """Return the work of the optimizer alone, or all other work."""
        return Work({cell: flops for cell, flops in self.cells.items() if (cell.phase == "optimizer") is optimizer})

    @staticmethod
    def sum(works: Iterable["Work"]) -> "Work":
        """Add up several works."""
        total: Counter[Cell] = Counter()
        for work in works:
            total.update(work.cells)
        return Work(total)


def _sums(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for name, amount in amounts:
        total[name] += amount
    return {name: amount for name, amount in total.items() if amount}
