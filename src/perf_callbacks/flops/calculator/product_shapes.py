"""Shapes of products that tensor cores can't use well, in a counted step or by the dimensions of a model."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from perf_callbacks.flops.calculator.architecture import Architecture, known

ALIGNED = 8
"""Sizes of 16-bit operands have to be multiples of this: 16 bytes.

Source: NVIDIA, Matrix Multiplication Background User's Guide, "Tensor Core Requirements".
"""

EFFICIENT = 64
"""Better sizes are multiples of this: most efficient on an A100 and later (128 bytes; same source)."""

TILE = (128, 256)
"""Rows and columns of the result that one multiprocessor computes at once, at best (same source)."""

TILES = (TILE, (256, 128), (128, 128))
"""Tiles of the most efficient kernels. A library chooses a tile for each product."""

BUSY = 0.7
"""Share of the multiprocessors. The table lists products for which no tile of `TILES` keeps this share busy."""

_PRODUCT = re.compile(r"\[(\d+), \d+\] x \[\d+, (\d+)\]")
_SIZES = re.compile(r"\d+")


class Misaligned(NamedTuple):
    """Size that is not a multiple of 8, and a better size."""

    size: int
    better: int
    share: float
    """Part of the FLOPs in products that have this size."""


class Waves(NamedTuple):
    """Rounds in which the multiprocessors compute the tiles of a product."""

    tiles: int
    waves: int
    busy: float
    """Part of the multiprocessors' time with a tile to compute, from 0 to 1."""


def better(size: int) -> int:
    """Return a size that tensor cores use well: the size itself, or the next multiple of 64.

    >>> better(10922), better(50257), better(4096), better(1000)
    (10944, 50304, 4096, 1000)
    """
    return math.ceil(size / EFFICIENT) * EFFICIENT if size % ALIGNED else size


def misaligned(products: Iterable[tuple[str, str, str, int]]) -> list[Misaligned]:
    """Return the sizes in products that are not multiples of 8, most FLOPs first.

    Sizes up to 8 are left out: a number of classes or of batches is not chosen for speed.

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
    """Compute the rounds of a product. The last round may leave most multiprocessors idle.

    >>> waves(rows=109 * 128, columns=256, multiprocessors=108)
    Waves(tiles=109, waves=2, busy=0.5046296296296297)
    """
    tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
    rounds = math.ceil(tiles / multiprocessors)
    return Waves(tiles, rounds, tiles / (rounds * multiprocessors))


class Uneven(NamedTuple):
    """Product whose last wave of tiles is nearly empty."""

    rows: int
    better_rows: int
    """Largest number of rows that needs one wave less."""
    waves: Waves
    share: float
    """Part of the FLOPs in products of this shape."""


def uneven(
    products: Iterable[tuple[str, str, str, int]], multiprocessors: int, fixed: Collection[int] = ()
) -> list[Uneven]:
    """Return the products of two matrices that leave many multiprocessors idle with any tile, most FLOPs first.

    A wave is a round in which each multiprocessor computes a tile. Products with many waves are left out, because the
    last wave hardly matters. Products of a single wave are left out too, because libraries have smaller tiles for
    these.

    Args:
        products: Operation, shapes, number format and FLOPs, as in a `flops` record.
        multiprocessors: Number of multiprocessors of the device.
        fixed: Sizes of weights. If a product has such a number of rows, another batch size doesn't change the rows.
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
    """Count the elements of all weights with `size`, before and after `size` is changed to `instead`.

    >>> padded({(10922, 4096): 2, (4096, 10922): 1, (4096, 4096): 4}, 10922, 10944)
    (134209536, 134479872)
    """
    having = {shape: number for shape, number in weights.items() if size in shape}
    return _elements(having, size, size), _elements(having, size, instead)


def _elements(weights: Mapping[tuple[int, ...], int], size: int, instead: int) -> int:
    return sum(
        [number * math.prod([instead if one == size else one for one in shape]) for shape, number in weights.items()]
    )


class ProductSize(NamedTuple):
    """Size in the products of a model, and the nearest size that tensor cores use well."""

    name: str
    size: int
    better: int
    weights: tuple[int, int] = (0, 0)
    """Elements of the weights with this size, and with the better size. Zeros: no weight has this size."""


def sizes(model: Architecture, tokens: int | None = None) -> list[ProductSize]:
    """Return the sizes that the author of a model chooses.

    >>> [(one.name, one.size, one.better) for one in sizes(Architecture(layers=12, hidden=768, heads=12, vocab=50257))]
    [('width', 768, 768), ('MLP', 3072, 3072), ('vocabulary', 50257, 50304), ('head', 64, 64)]
    """
    weights: Counter[tuple[int, ...]] = Counter()
    for shape, number in _multiplied(model):
        weights[shape] += number
    weights[known(model.vocab, "vocab"), model.width] += model.outputs is not None or not model.tied
    chosen = {"width": model.width, "MLP": model.mlp_width, "vocabulary": known(model.vocab, "vocab")}
    found = [
        ProductSize(name, size, better(size), padded(weights, size, better(size))) for name, size in chosen.items()
    ]
    if model.heads:
        head = model.attention_width // model.heads
        found.append(ProductSize("head", head, better(head)))
    return [*found, *([ProductSize("tokens", tokens, better(tokens))] if tokens else [])]


def products(model: Architecture, tokens: int) -> list[tuple[str, str, str, int]]:
    """Return the products of a forward with the weights, as in a `flops` record."""
    return [
        ("aten::mm", f"[{tokens}, {columns}] x [{columns}, {rows}]", "bfloat16", 2 * tokens * rows * columns * number)
        for (rows, columns), number in _multiplied(model)
    ]


def _multiplied(model: Architecture) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield each shape (output size, input size) of the multiplied weights, and the number of weights of that shape."""
    layers, experts = known(model.layers, "layers"), model.experts or 1
    width, ffn = model.width, model.mlp_width
    yield (ffn, width), layers * experts * (2 if model.gated else 1)
    yield (width, ffn), layers * experts
    yield (model.attention_width, width), layers
    if model.outputs != 0:
        yield (known(model.vocab, "vocab") if model.outputs is None else model.outputs, width), 1
