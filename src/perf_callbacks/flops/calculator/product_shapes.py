"""Find the matrix products that tensor cores can't compute well, in a counted step or from a model's dimensions."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from perf_callbacks.flops.calculator.architecture import Architecture, known

ALIGNED = 8
"""Tensor cores need operands whose sizes are multiples of 8. Eight 16-bit numbers take 16 bytes.

Source: NVIDIA, Matrix Multiplication Background User's Guide, "Tensor Core Requirements".
"""

EFFICIENT = 64
"""Multiples of 64 are the most efficient sizes on an A100 and later. The source is the same as for `ALIGNED`."""

TILE = (128, 256)
TILES = (TILE, (256, 128), (128, 128))
"""Rows and columns of the tiles of the most efficient kernels. A library chooses a tile for each product."""

BUSY = 0.7
"""A product counts as uneven if each tile of `TILES` keeps less than this share of the multiprocessors busy."""

_PRODUCT = re.compile(r"\[(\d+), \d+\] x \[\d+, (\d+)\]")


class Misaligned(NamedTuple):
    """Size in matrix products, such as 50257, that is not a multiple of 8. `better` is the size to use instead."""

    size: int
    better: int
    share: float
    """FLOPs of all products with this size, as a share of all FLOPs."""


class Waves(NamedTuple):
    """Rounds (waves) in which each multiprocessor computes one tile of a matrix product."""

    tiles: int
    waves: int
    busy: float
    """Share of the multiprocessors that have a tile to compute, from 0 to 1: the mean of all waves."""


def better(size: int) -> int:
    """Return a size that tensor cores use well: the size itself, or the next multiple of 64."""
    return math.ceil(size / EFFICIENT) * EFFICIENT if size % ALIGNED else size


def misaligned(products: Iterable[tuple[str, str, str, int]]) -> list[Misaligned]:
    """Return the sizes of operands that aren't multiples of 8, the size whose products have the most FLOPs first.

    Sizes up to 8, such as a small number of classes, are left out: nobody chooses them for speed. `products` has the
    operation, the shapes, the dtype and the FLOPs of each product, as in a `flops` record.
    """
    flops_of: Counter[int] = Counter()
    every = 0
    for _, shapes, _, flops in products:
        every += flops
        operands = [operand.split(", ")[-2:] for operand in re.findall(r"\[([^\]]*)\]", shapes)]
        sizes = {int(size) for operand in operands for size in operand if size.isdecimal()}
        for size in sizes:
            if size > ALIGNED and size % ALIGNED:
                flops_of[size] += flops
    return [Misaligned(size, better(size), flops / every) for size, flops in flops_of.most_common() if every]


def waves(rows: int, columns: int, multiprocessors: int, tile: tuple[int, int] = TILE) -> Waves:
    """Return the waves that compute a matrix product. The last wave may leave most multiprocessors idle."""
    tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    rounds = math.ceil(tiles / multiprocessors)
    return Waves(tiles, rounds, tiles / (rounds * multiprocessors))


class Uneven(NamedTuple):
    """Matrix product whose last wave of tiles leaves many multiprocessors idle."""

    rows: int
    better_rows: int
    """Largest number of rows that saves a wave."""
    waves: Waves
    share: float
    """FLOPs of all products of this shape, as a share of all FLOPs."""


def uneven(
    products: Iterable[tuple[str, str, str, int]], multiprocessors: int, fixed: Collection[int] = ()
) -> list[Uneven]:
    """Return the matrix products that leave many multiprocessors idle, the product with the most FLOPs first.

    The last of many waves hardly matters, and for a single wave libraries use smaller tiles: both are left out. So are
    products whose rows are a size of weights (`fixed`), because another batch size wouldn't change them.
    """
    every = [*products]
    total = sum([flops for *_, flops in every])
    found: list[Uneven] = []
    for _, shapes, _, flops in every:
        match = _PRODUCT.fullmatch(shapes)
        rows, columns = map(int, match.groups()) if match else (0, 0)
        if not rows or not columns or rows in fixed:
            continue
        usual = waves(rows, columns, multiprocessors)
        fewer = (usual.waves - 1) * multiprocessors // math.ceil(columns / TILE[1]) * TILE[0]
        if fewer and max([waves(rows, columns, multiprocessors, tile).busy for tile in TILES]) < BUSY:
            found.append(Uneven(rows, fewer, usual, flops / total))
    return sorted(found, key=lambda one: -one.share)


def padded(weights: Mapping[tuple[int, ...], int], size: int, instead: int) -> tuple[int, int]:
    """Count the elements of all weights with a dimension of `size`, before and after padding `size` to `instead`.

    >>> padded({(10922, 4096): 2, (4096, 10922): 1, (4096, 4096): 4}, 10922, 10944)
    (134209536, 134479872)
    """
    before = after = 0
    for shape, number in weights.items():
        if size in shape:
            before += number * math.prod(shape)
            after += number * math.prod([instead if one == size else one for one in shape])
    return before, after


class ProductSize(NamedTuple):
    """Size in a model's matrix products, and the next size that tensor cores use well."""

    name: str
    size: int
    better: int
    weights: tuple[int, int] = (0, 0)
    """Elements of all weights with this size, before and after padding to the better size, or 0 without such weights.
    """


def sizes(model: Architecture, tokens: int | None = None) -> list[ProductSize]:
    """Return the sizes in matrix products that the author of a model chooses, such as the vocabulary."""
    weights: Counter[tuple[int, ...]] = Counter()
    for shape, number in _multiplied(model):
        weights[shape] += number
    weights[known(model.vocab, "vocab"), model.width] += model.outputs is not None or not model.tied
    chosen = {"width": model.width, "MLP": model.mlp_width, "vocabulary": known(model.vocab, "vocab")}
    weightless = {"head": model.attention_width // model.heads if model.heads else None, "tokens": tokens}
    return [
        *[ProductSize(name, size, better(size), padded(weights, size, better(size))) for name, size in chosen.items()],
        *[ProductSize(name, size, better(size)) for name, size in weightless.items() if size],
    ]


def products(model: Architecture, tokens: int) -> list[tuple[str, str, str, int]]:
    """Return the products with weights in a forward, in the form of a `flops` record."""
    return [
        ("aten::mm", f"[{tokens}, {columns}] x [{columns}, {rows}]", "bfloat16", 2 * tokens * rows * columns * number)
        for (rows, columns), number in _multiplied(model)
    ]


def _multiplied(model: Architecture) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield each shape (output size, input size) of multiplied weights, and the number of such weights."""
    layers, experts = known(model.layers, "layers"), model.experts or 1
    width, ffn = model.width, model.mlp_width
    yield (ffn, width), layers * experts * (2 if model.gated else 1)
    yield (width, ffn), layers * experts
    yield (model.attention_width, width), layers
    if model.outputs != 0:
        yield (known(model.vocab, "vocab") if model.outputs is None else model.outputs, width), 1
