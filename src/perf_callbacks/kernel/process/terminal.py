"""The terminal that lines and cards are printed on."""

import os
import sys
from collections.abc import Callable

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass

COLUMNS = 80
"""Columns of a card that is piped, or shown on a wide terminal."""

FEWEST = 40
"""Fewest columns of a card. Narrower terminals break the lines."""


def columns() -> int:
    """Return the columns of the terminal, 80 at most and 40 at least."""
    found = 0
    with guard(let_pass):  # a stream of the program's own may be anything
        found = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    return max(FEWEST, min(found or COLUMNS, COLUMNS))


def show(text: str, write: Callable[..., object] = print) -> None:
    """Print lines with their end in one write.

    With two writes, rich's progress bar in a notebook repeats the last line some hundred times.

    Args:
        text: The lines.
        write: `print`, or `tqdm.write`, which leaves a progress bar of tqdm intact.
    """
    write(text + "\n", end="")
