"""The terminal on which lines and summary cards are printed."""

import os
import sys
from collections.abc import Callable

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass

COLUMNS = 80
"""Width, in columns, of a card that is piped or shown on a wide terminal."""

FEWEST = 40
"""Smallest width of a card, in columns. A terminal that is narrower than a card breaks the lines of the card."""


def columns() -> int:
    """Return the width of the terminal in columns, limited to the range from 40 to 80."""
    found = 0
    with guard(let_pass):  # a stream of the program's own may be anything
        found = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0
    return max(FEWEST, min(found or COLUMNS, COLUMNS))


def show(text: str, write: Callable[..., object] = print) -> None:
    """Print lines, and the final line end, in a single write.

    With two writes, rich's progress bar in a notebook would repeat the final line of the text many times.

    Args:
        text: The lines.
        write: Function that prints: `print`, or `tqdm.write`, which leaves a progress bar of tqdm intact.
    """
    write(text + "\n", end="")
