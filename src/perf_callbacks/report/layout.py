"""Functions that break text into lines, align tables, and shorten values from a journal."""

import re
from collections.abc import Collection, Iterable, Sequence
from textwrap import wrap

from perf_callbacks.report.units import DASH

COLUMNS = 80

INDENT = 2

MOST_NAMES = 4

LONGEST = 60

_JOINED = "\N{NO-BREAK SPACE}"

_UNIT = re.compile(r"(?<=≥) |(?<=\d) (?=%|(?:us|ms|s|B|kB|MB|GB|[TGMk]?FLOPS|x|samples/s|tokens/s)\b)")
"""Between a number and its unit, where no line is broken."""


def card(parts: Sequence[str], columns: int, *, indent: str = "  ") -> str:
    """Later lines of the first part begin with `indent`."""
    width = columns - INDENT
    first, *others = parts
    lines = [
        *wrapped(first, indent=indent, width=width),
        *[line for part in others for line in wrapped(part, width=width)],
    ]
    return "\n  ".join(lines)


def wrapped(text: str, *, indent: str = "  ", width: int = COLUMNS - INDENT) -> list[str]:
    """A word longer than a line, such as a path, stays whole.

    In a text of `joined`, a part is broken only if it is longer than a line.
    """
    if len(text) <= width:
        return [text.replace(_JOINED, " ")]
    parts = _UNIT.sub(_JOINED, text).split(" ")
    text = " ".join([part if len(indent + part) <= width else part.replace(_JOINED, " ") for part in parts])
    lines = wrap(text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_JOINED, " ") for line in lines]


def joined(parts: Iterable[str]) -> str:
    """With commas, so that `wrapped` breaks lines only between parts."""
    return ", ".join(part.replace(" ", _JOINED) for part in parts)


def aligned(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """`right` holds the indices of the columns that are aligned to the right.

    >>> aligned([("rank", "CPUs"), ("0", "0-7"), ("10", "")], right={0})
    ['rank  CPUs', '   0  0-7', '  10']
    """
    columns = [
        [cell.rjust(width) if place in right else cell.ljust(width) for cell in column]
        for place, column in enumerate(zip(*rows, strict=True))
        for width in [max(map(len, column))]
    ]
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def clean(value: object, longest: int = LONGEST) -> str:
    """Render a value from a journal without control characters.

    >>> clean(None), clean("a" + chr(27) + "b"), clean(32.0)
    ('—', 'a?b', '32')
    """
    shown = DASH if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    shown = "".join([letter if letter.isprintable() else "?" for letter in shown])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def ends(path: str, longest: int) -> str:
    """Cut the beginning of a path, because the end says more.

    >>> ends("model.layers.*.mlp.up_proj", 12), ends("model", 1)
    ('…mlp.up_proj', '…')
    """
    return path if len(path) <= longest else "…" + path[len(path) - longest + 1 :]


def few(names: Sequence[str]) -> str:
    """List at most the first `MOST_NAMES` names.

    >>> few(["a", "b"]), few(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c, d and 1 more')
    """
    rest = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + rest


def listed(ranks: Sequence[int]) -> str:
    """List at most the first ten ranks.

    >>> listed([1, 3]), listed(range(11))
    ('1, 3', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …')
    """
    return ", ".join(map(str, ranks[:10])) + (", …" if len(ranks) > 10 else "")  # noqa: PLR2004
