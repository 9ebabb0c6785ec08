"""Find the matrix products that tensor cores can't compute well, in a counted step or from a model's dimensions."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from perf_callbacks.flops.calculator.architecture import Architecture, known

ALIGNED, EFFICIENT = 8, 64
"""Tensor cores need sizes that are multiples of 8, and are most efficient with multiples of 64 on an A100 and later.
Source: NVIDIA, Matrix Multiplication Background User's Guide, "Tensor Core Requirements"."""

TILE = (128, 256)
TILES = (TILE, (256, 128), (128, 128))
"""Rows and columns of the tiles of the most efficient kernels. A library chooses a tile for each product."""

BUSY = 0.7
"""A product counts as uneven if each tile of `TILES` keeps less than this share of the multiprocessors busy."""

_PRODUCT = re.compile(r"\[(\d+), \d+\] x \[\d+, (\d+)\]")


class Misaligned(NamedTuple):
    """Size that is not a multiple of 8, such as 50257, with its products' share of all FLOPs."""

    size: int
    better: int
    share: float


class Waves(NamedTuple):
    """Rounds (waves) in which each multiprocessor computes one tile of a matrix product."""

    tiles: int
    waves: int
    busy: float
    """Share of the multiprocessors that have a tile to compute: the mean of all waves."""


def better(size: int) -> int:
    """Return a size that tensor cores use well: the size itself, or the next multiple of 64."""
    return math.ceil(size / EFFICIENT) * EFFICIENT if size % ALIGNED else size


def misaligned(products: Collection[tuple[str, str, str, int]]) -> list[Misaligned]:
    """Return the sizes of operands that aren't multiples of 8, the size whose products have the most FLOPs first.

    Sizes up to 8, such as a small number of classes, are left out: nobody chooses them for speed. `products` has the
    operation, the shapes, the dtype and the FLOPs of each product, as in a `flops` record.
    """
    flops_of: Counter[int] = Counter()
    total = sum([flops for *_, flops in products])
    for _, shapes, _, flops in products:
        operands = [operand.split(", ")[-2:] for operand in re.findall(r"\[([^\]]*)\]", shapes)]
        for size in {int(size) for operand in operands for size in operand if size.isdecimal()}:
            if size > ALIGNED and size % ALIGNED:
                flops_of[size] += flops
    return [Misaligned(size, better(size), flops / total) for size, flops in flops_of.most_common() if total]


def waves(rows: int, columns: int, multiprocessors: int, tile: tuple[int, int] = TILE) -> Waves:
    """Return the waves that compute a matrix product. The last wave may leave most multiprocessors idle."""
    tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    rounds = math.ceil(tiles / multiprocessors)
    return Waves(tiles, rounds, tiles / (rounds * multiprocessors))


class Uneven(NamedTuple):
    """Matrix product whose last wave of tiles leaves many multiprocessors idle, with its share of all FLOPs."""

    rows: int
    better_rows: int
    """Largest number of rows that saves a wave."""
    waves: Waves
    share: float


def uneven(
    products: Collection[tuple[str, str, str, int]], multiprocessors: int, fixed: Collection[int] = ()
) -> list[Uneven]:
    """Return the matrix products that leave many multiprocessors idle, the product with the most FLOPs first.

    The last of many waves hardly matters, and for a single wave libraries use smaller tiles: both are left out. So are
    products whose rows are a size of weights (`fixed`), because another batch size wouldn't change them.
    """
    total = sum([flops for *_, flops in products])
    wasteful: list[Uneven] = []
    for match, flops in [(_PRODUCT.fullmatch(shapes), flops) for _, shapes, _, flops in products]:
        rows, columns = map(int, match.groups()) if match else (0, 0)
        if rows and columns and rows not in fixed:
            usual = waves(rows, columns, multiprocessors)
            fewer = (usual.waves - 1) * multiprocessors // math.ceil(columns / TILE[1]) * TILE[0]
            if fewer and max([waves(rows, columns, multiprocessors, tile).busy for tile in TILES]) < BUSY:
                wasteful.append(Uneven(rows, fewer, usual, flops / total))
    return sorted(wasteful, key=lambda product: -product.share)


def padded(weights: Mapping[tuple[int, ...], int], size: int, instead: int) -> tuple[int, int]:
    """Count the elements of all weights with a dimension of `size`, before and after padding `size` to `instead`."""
    shapes = [(number, shape) for shape, number in weights.items() if size in shape]
    after = [number * math.prod([instead if side == size else side for side in shape]) for number, shape in shapes]
    return sum([number * math.prod(shape) for number, shape in shapes]), sum(after)


class ProductSize(NamedTuple):
    """Size in a model's matrix products, and the next size that tensor cores use well."""

    name: str
    size: int
    better: int
    weights: tuple[int, int] = (0, 0)
    """Elements of all weights with this size, before and after padding, or 0 without such weights."""


def sizes(model: Architecture, tokens: int | None = None) -> list[ProductSize]:
    """Return the sizes in matrix products that the author of a model chooses, such as the vocabulary."""
    weights: Counter[tuple[int, ...]] = Counter()
    for shape, number in _multiplied(model):
        weights[shape] += number  # two matrices may have one shape
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
    layers, width, ffn = known(model.layers, "layers"), model.width, model.mlp_width
    mlps = layers * (model.experts or 1)
    yield (ffn, width), mlps * (2 if model.gated else 1)
    yield (width, ffn), mlps
    yield (model.attention_width, width), layers
    if model.outputs != 0:
        yield (known(model.vocab, "vocab") if model.outputs is None else model.outputs, width), 1
