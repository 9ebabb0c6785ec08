"""Draw the card of a recorded run as an SVG, for README.

perf-callbacks demo
python benchmarks/card_picture.py DIRECTORY/as_it_is docs/images/card.svg --title '$ perf-callbacks demo'
"""

import argparse
from html import escape
from pathlib import Path

from perf_callbacks.journal import Checklist, Summary, files, read
from perf_callbacks.report import cards

LINE, LETTER, MARGIN, FONT = 18, 7.83, 16, 13
COLORS = {"background": "#0d1117", "border": "#3d444d", "text": "#d1d7e0", "verdict": "#ffd866", "title": "#7ee787"}
FAMILY = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def drawn(title: str, card: str) -> str:
    """Return the SVG of a card. The verdict ends before another cause, or before the line that counts the steps."""
    lines = card.splitlines()
    verdict = next(number for number, line in enumerate(lines) if line.startswith("  also:") or " measured (" in line)
    colors = [COLORS["title"]] * 2 + [COLORS["verdict"]] * verdict + [COLORS["text"]] * len(lines)
    lines = [title, "", *lines]
    width = round(max(map(len, lines)) * LETTER + 2 * MARGIN)
    height = len(lines) * LINE + 2 * MARGIN - (LINE - FONT)
    rows = [
        f'<text x="{MARGIN}" y="{MARGIN + FONT - 2 + number * LINE}" fill="{color}">{escape(line, quote=False)}</text>'
        for number, (line, color) in enumerate(zip(lines, colors, strict=False))
        if line
    ]
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    font = f'font-family="{FAMILY}" font-size="{FONT}"'
    fill = f'fill="{COLORS["background"]}" stroke="{COLORS["border"]}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
            "<style>text{white-space:pre}</style>",
            f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6" {fill}/>',
            *rows,
            "</svg>\n",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--title", default="")
    options = parser.parse_args()
    records = [entry.record for entry in read(files(options.run)[0])]
    summary = [one for one in records if isinstance(one, Summary)][-1]
    checklist = [one for one in records if isinstance(one, Checklist)]
    options.picture.write_text(drawn(options.title, cards.closing(summary, checklist)), encoding="utf-8")


if __name__ == "__main__":
    main()
