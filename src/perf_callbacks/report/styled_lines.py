"""Lines of text with styles, cut at the width of a terminal."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from perf_callbacks.report.layout import ends

Style = Literal["", "dim", "strong", "good", "warning", "bad"]

_ASCII = str.maketrans({"█": "#", "·": "-", "—": "-", "…": "~", "≥": ">"})

NARROW = 60
"""With fewer columns, `perf-callbacks watch` leaves out some figures."""


class StyledText(NamedTuple):
    """Part of a line in one style."""

    text: str
    style: Style = ""


Line = tuple[StyledText, ...]


def styled(text: str, style: Style = "") -> Line:
    return (StyledText(text, style),)


def plain(line: Line) -> str:
    return "".join([span.text for span in line])


def cut(line: Line, columns: int) -> Line:
    """Cut the end.

    >>> plain(cut((StyledText("rank 3"), StyledText(" is slow")), 10)), plain(cut(styled("rank 3"), 10))
    ('rank 3 is…', 'rank 3')
    """
    if sum([len(span.text) for span in line]) <= columns:
        return line
    spans, left = [], columns - 1
    for span in line:
        spans.append(StyledText(span.text[:left], span.style))
        left -= len(span.text)
        if left < 0:
            break
    last = spans[-1]
    return (*spans[:-1], StyledText(f"{last.text}…", last.style))


def cut_left(text: str, columns: int) -> str:
    """Cut a long text such as a path at its beginning, because its end says more. The indent stays.

    >>> cut_left("  /home/me/train.py:20 main", 20)
    '  …/train.py:20 main'
    """
    bare = text.lstrip(" ")
    indent = len(text) - len(bare)
    return " " * indent + ends(bare, columns - indent)


def encodable(lines: Sequence[Line], encoding: str) -> Sequence[Line]:
    """Replace the characters that an encoding can't represent.

    >>> plain(encodable([styled("data ██ 中")], "ascii")[0])
    'data ## ?'
    """
    if encoding.lower().replace("-", "") in {"utf8", "utf16"}:
        return lines

    def shown(text: str) -> str:
        return text.translate(_ASCII).encode(encoding, errors="replace").decode(encoding)

    return [tuple([StyledText(shown(text), style) for text, style in line]) for line in lines]
