"""`perf-callbacks shapes`: find sizes of an untrained model that tensor cores can't use well."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from perf_callbacks.commands.flops import read_config
from perf_callbacks.commands.outcomes import ExitStatus
from perf_callbacks.flops.calculator.architecture import LARGEST, Architecture, dimensions
from perf_callbacks.flops.calculator.product_shapes import ProductSize, Uneven, products, sizes, uneven
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report.layout import aligned

SUMMARY: str = "find sizes of a model that tensor cores can't use well, and suggest better sizes"

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
    rows = sizes(model, arguments.tokens)
    waves = []
    if arguments.multiprocessors is not None:
        waves = uneven(products(model, arguments.tokens), arguments.multiprocessors)
    print(table(rows, waves, arguments.multiprocessors))
    return ExitStatus.TO_CHANGE if waves or any(size.better != size.size for size in rows) else 0


def table(sizes: Sequence[ProductSize], waves: Sequence[Uneven], multiprocessors: int | None) -> str:
    """Below, list matrix products that leave many multiprocessors idle.

    >>> print(table([ProductSize("MLP", 10922, 10944, (134_209_536, 134_479_872)),
    ...              ProductSize("head", 128, 128)], [], None))
                size  take    weights with it
    MLP       10,922  10,944  134,209,536 -> 134,479,872
    head         128  as is
    """
    lines = aligned([_HEADINGS, *map(_cells, sizes)], right={1})
    lines += [
        f"{row.rows:,} tokens are {row.waves.tiles:,} tiles in a product, for {multiprocessors} multiprocessors:\n"
        f"  {row.waves.waves} waves, {row.waves.busy:.1%} busy; {row.better_rows:,} tokens take one wave less"
        for row in waves
    ]
    return "\n".join(lines)


def _cells(size: ProductSize) -> tuple[str, str, str, str]:
    before, after = size.weights
    if size.better == size.size:
        return size.name, f"{size.size:,}", "as is", ""
    return size.name, f"{size.size:,}", f"{size.better:,}", f"{before:,} -> {after:,}" if before else ""
