"""Table of a model's sizes, such as the width of its MLP, and of sizes that suit tensor cores better."""

from collections.abc import Sequence

from perf_callbacks.flops.calculator.product_shapes import ProductSize, Uneven
from perf_callbacks.report.layout import aligned

HEADER = (" " * 8, "size", "take", "weights with it")


def render(sizes: Sequence[ProductSize], waves: Sequence[Uneven], multiprocessors: int | None) -> str:
    """Render the table of sizes. Below the table, list matrix products that leave many multiprocessors idle.

    >>> print(render([ProductSize("MLP", 10922, 10944, (134_209_536, 134_479_872)),
    ...               ProductSize("head", 128, 128)], [], None))
                size  take    weights with it
    MLP       10,922  10,944  134,209,536 -> 134,479,872
    head         128  as is
    """
    lines = aligned([HEADER, *map(_cells, sizes)], right={1})
    lines += [
        f"{one.rows:,} tokens are {one.waves.tiles:,} tiles in a product, for {multiprocessors} multiprocessors:\n"
        f"  {one.waves.waves} waves, {one.waves.busy:.1%} busy; {one.better_rows:,} tokens take one wave less"
        for one in waves
    ]
    return "\n".join(lines)


def _cells(one: ProductSize) -> tuple[str, str, str, str]:
    before, after = one.weights
    if one.better == one.size:
        return one.name, f"{one.size:,}", "as is", ""
    return one.name, f"{one.size:,}", f"{one.better:,}", f"{before:,} -> {after:,}" if before else ""
