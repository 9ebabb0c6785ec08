"""FLOPs of a step, by phase, dtype and kind of operation.

A FLOP is one multiplication or addition of floating-point numbers; a multiply-accumulate is two. Only matmuls,
convolutions and attention count, elementwise operations don't.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Phase = Literal["forward", "backward", "recompute", "attention_recompute", "optimizer"]
""""recompute": a forward that runs again in the backward, mostly by activation checkpointing. "attention_recompute":
scores that the backward of a fused attention kernel computes again."""

Kind = Literal["matmul", "attention", "convolution"]

MODEL: tuple[Phase, ...] = ("forward", "backward")  # of model FLOPs, which don't include recomputation


class WorkKey(NamedTuple):
    """Phase, dtype and kind of operations whose FLOPs are added up."""

    phase: Phase
    dtype: str  # of the operands, as torch spells it; "tfloat32" if torch multiplies float32 in TF32
    kind: Kind


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs by phase, dtype and kind of operation.

    >>> Work({WorkKey(phase, "float32", "matmul"): 10 for phase in ("forward", "recompute")}).hardware_flops
    20
    """

    cells: Mapping[WorkKey, int] = field(default_factory=dict)

    @property
    def model_flops(self) -> int:
        """Without recomputation: the numerator of MFU."""
        return sum(flops for cell, flops in self.cells.items() if cell.phase in MODEL)

    @property
    def hardware_flops(self) -> int:
        """With recomputation: the numerator of HFU."""
        return sum(self.cells.values())

    @property
    def by_phase(self) -> dict[str, int]:
        return _sums((cell.phase, flops) for cell, flops in self.cells.items())

    @property
    def by_dtype(self) -> dict[str, int]:
        return _sums((cell.dtype, flops) for cell, flops in self.cells.items() if cell.phase in MODEL)

    def select(self, *, optimizer: bool) -> "Work":
        return Work({cell: flops for cell, flops in self.cells.items() if (cell.phase == "optimizer") is optimizer})

    @staticmethod
    def sum(works: Iterable["Work"]) -> "Work":
        total: Counter[WorkKey] = Counter()
        for work in works:
            total.update(work.cells)
        return Work(total)


def beside_model(phases: Collection[str]) -> str:
    """Return words for the executed FLOPs that are no model FLOPs; empty if there are none.

    >>> beside_model(["forward", "recompute", "optimizer"])
    "recomputation and the optimizer's products"
    """
    again = {"recompute", "attention_recompute"} & {*phases}
    return " and ".join(["recomputation"] * bool(again) + ["the optimizer's products"] * ("optimizer" in phases))


def _sums(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for name, amount in amounts:
        total[name] += amount
    return {name: amount for name, amount in total.items() if amount}
