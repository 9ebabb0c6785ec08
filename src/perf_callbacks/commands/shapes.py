"""`perf-callbacks shapes`: find sizes of an untrained model that tensor cores can't use well."""

import argparse
from pathlib import Path

from perf_callbacks.commands.flops import read_config
from perf_callbacks.flops.calculator.architecture import LARGEST, Architecture, dimensions
from perf_callbacks.flops.calculator.product_shapes import products, sizes, uneven
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report import shape_table

SUMMARY: str = "find sizes of a model that tensor cores can't use well, and suggest better sizes"

TO_CHANGE = 1
"""Exit status if a size should change."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("path", metavar="CONFIG", help="config.json of a model on Hugging Face")
    parser.add_argument("--tokens", type=int, help="tokens in a micro-batch: batch times length")
    parser.add_argument(
        "--multiprocessors", type=int, help="multiprocessors of the GPU, such as 108 of an A100 or 132 of an H100"
    )
    parser.epilog = "Exits with 1 if a size should change."


def run(arguments: argparse.Namespace) -> int:
    """Print the sizes of the model. Return `TO_CHANGE` if a size should change."""
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
    print(shape_table.render(found, waves, arguments.multiprocessors))
    return TO_CHANGE if waves or any(size.better != size.size for size in found) else 0
