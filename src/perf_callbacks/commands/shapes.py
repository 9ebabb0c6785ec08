"""`perf-callbacks shapes`: find sizes of an untrained model that tensor cores can't use well."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from perf_callbacks.commands.flops import read_config
from perf_callbacks.flops.calculator.architecture import LARGEST, Architecture, dimensions
from perf_callbacks.flops.calculator.product_shapes import ProductSize, Uneven, products, sizes, uneven
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report.layout import aligned

SUMMARY: str = "find sizes of a model that tensor cores can't use well, and suggest better sizes"

TO_CHANGE = 1
"""Exit status if a size should change."""

_HEADINGS = (" " * 8, "size", "take", "weights with it")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="CONFIG", help="config.json of a model on Hugging Face")
    parser.add_argument("--tokens", type=int, help="tokens in a micro-batch: batch times length")
    parser.add_argument(
        "--multiprocessors", type=int, help="multiprocessors of the GPU, such as 108 of an A100 or 132 of an H100"
    )
    parser.epilog = "Exits with 1 if a size should change."


def run(arguments: argparse.Namespace) -> int:
    for name in ("tokens", "multiprocessors"):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= LARGEST:
            raise ConfigError(f"--{name}: got {value:.4g}, wanted a whole number from 1 to {LARGEST:g}.")
    if arguments.multiprocessors is not None and arguments.tokens is None:
        raise ConfigError("--tokens: is missing, wanted the tokens that the multiprocessors work on.")
    model = Architecture(**dimensions(read_config(Path(arguments.path))))
    found = sizes(model, arguments.tokens)
    waves = []
    if arguments.multiprocessors is not None:
        waves = uneven(products(model, arguments.tokens), arguments.multiprocessors)
    print(table(found, waves, arguments.multiprocessors))
    return TO_CHANGE if waves or any(size.better != size.size for size in found) else 0


def table(found: Sequence[ProductSize], waves: Sequence[Uneven], multiprocessors: int | None) -> str:
    """Below, list matrix products that leave many multiprocessors idle.

    >>> print(table([ProductSize("MLP", 10922, 10944, (134_209_536, 134_479_872)),
    ...              ProductSize("head", 128, 128)], [], None))
                size  take    weights with it
    MLP       10,922  10,944  134,209,536 -> 134,479,872
    head         128  as is
    """
    lines = aligned([_HEADINGS, *map(_cells, found)], right={1})
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
