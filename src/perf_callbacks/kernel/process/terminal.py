"""The terminal on which lines and summary cards are printed."""

import os
import sys
from collections.abc import Callable

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass

COLUMNS = 80
"""Columns of a card that is piped or shown on a wide terminal."""

FEWEST = 40
"""A narrower terminal breaks the lines of the card."""


def columns() -> int:
    width = 0
    with guard(let_pass):  # a stream of the program's own may be anything
        width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    return max(FEWEST, min(width or COLUMNS, COLUMNS))


def show(text: str, write: Callable[..., object] = print) -> None:
    """Write once (perhaps by `tqdm.write`): after two writes, rich's bar in a notebook would repeat the last line."""
    write(text + "\n", end="")
