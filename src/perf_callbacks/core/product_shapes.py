"""Shapes of products that tensor cores can't use well."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

ALIGNED = 8
"""Sizes of 16-bit operands have to be multiples of this: 16 bytes.

Source: NVIDIA, Matrix Multiplication Background User's Guide, "Tensor Core Requirements".
"""

EFFICIENT = 64
"""Sizes to round up to: most efficient on an A100 and later (128 bytes; same source)."""

TILE = (128, 256)
"""Rows and columns of the result that one multiprocessor computes at once, at best (same source)."""

_SIZES = re.compile(r"\d+")


class Misaligned(NamedTuple):
    """Size that is no multiple of 8, and the size to take instead."""

    size: int
    better: int
    share: float
    """Part of the FLOPs in products that have this size."""


class Waves(NamedTuple):
    """Rounds in which the multiprocessors compute the tiles of a product."""

    tiles: int
    waves: int
    busy: float
    """Part of the multiprocessors' time in which they have a tile, from 0 to 1."""


def better(size: int) -> int:
    """Return the size that tensor cores can use well: the size itself, or the next multiple of 64.

    >>> better(10922), better(50257), better(4096), better(1000)
    (10944, 50304, 4096, 1000)
    """
    return math.ceil(size / EFFICIENT) * EFFICIENT if size % ALIGNED else size


def misaligned(products: Iterable[tuple[str, str, str, int]]) -> list[Misaligned]:
    """Return the sizes in products that are no multiples of 8, those of most FLOPs first.

    A size of less than 8 is no dimension that anybody chose for speed, such as the number of classes or of batches.

    Args:
        products: Operation, shapes, number format and FLOPs, as in a `flops` record.
    """
    flops_of: Counter[int] = Counter()
    every = 0
    for _, shapes, _, flops in products:
        every += flops
        operands = [operand.split(", ")[-2:] for operand in re.findall(r"\[([^\]]*)\]", shapes)]
        sizes = {int(size) for operand in operands for size in operand if _SIZES.fullmatch(size)}
        for size in sizes:
            if size > ALIGNED and size % ALIGNED:
                flops_of[size] += flops
    return [Misaligned(size, better(size), flops / every) for size, flops in flops_of.most_common() if every]


def waves(rows: int, columns: int, multiprocessors: int, tile: tuple[int, int] = TILE) -> Waves:
    """Compute the rounds that a product takes, the last of which may leave most multiprocessors idle.

    >>> waves(rows=109 * 128, columns=256, multiprocessors=108)
    Waves(tiles=109, waves=2, busy=0.5046296296296297)
    """
    tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    rounds = math.ceil(tiles / multiprocessors)
    return Waves(tiles, rounds, tiles / (rounds * multiprocessors))


def swiglu_parameters(hidden: int, width: int) -> int:
    """Count the weights of a gated MLP.

    >>> swiglu_parameters(4096, 10922), swiglu_parameters(4096, better(10922))
    (134209536, 134479872)
    """
    return 3 * hidden * width
