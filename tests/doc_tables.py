"""Tables of the documentation that come from registries. `make tables` writes them."""

import argparse
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import get_args

from perf_callbacks.commands import COMMANDS
from perf_callbacks.flops.peaks.device_peaks import DEVICES
from perf_callbacks.journal import Record
from perf_callbacks.kernel.records.codec import NAMES
from perf_callbacks.kernel.records.metric_table import METRICS
from perf_callbacks.report.figure_table import FIGURES

DOCS = Path(__file__).parents[1] / "docs"


def table(*rows):
    """A table in Markdown. The first row is the head."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body]) + "\n"


def metrics():
    """The table of `docs/metrics.md`."""
    rows = [
        (f"`{metric.key}`", metric.unit, metric.meaning, metric.left_out, ", ".join(metric.needs)) for metric in METRICS
    ]
    return table(("metric", "unit", "meaning", "not counted", "needs"), *rows)


def figures():
    """The table of `docs/report.md`."""
    rows = [(one.title, one.meaning, one.source, one.left_out) for one in FIGURES]
    return table(("figure", "how it is computed", "from", "not counted"), *rows)


def records():
    """The table of `docs/journal.md`."""
    rows = [
        (
            f"`{NAMES[kind]}`",
            " ".join(kind.__doc__.split("\n\n")[0].split()),
            ", ".join([f"`{field.name}`" for field in fields(kind)]),
        )
        for kind in get_args(Record)
    ]
    return table(("type", "content", "fields"), *rows)


def peaks():
    """The table of `docs/peaks.md`."""
    formats = ("float32", "tfloat32", "float16", "bfloat16", "float8", "float4")
    rows = [
        (row.called, *[f"{row.tflops[name]:g}" if name in row.tflops else "—" for name in formats], row.source)
        for row in DEVICES
    ]
    return table(("device", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "source"), *rows)


def commands():
    """The sections of `docs/commands.md`, from the help of each command."""
    return "".join([f"\n## {name}\n\n```text\n{command_help(name)}```\n" for name in COMMANDS])


def command_help(name):
    """The text of `--help`, for a terminal of 100 columns."""
    form = partial(argparse.HelpFormatter, width=100)
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(
        f"perf-callbacks {name}", description=command.SUMMARY, allow_abbrev=False, formatter_class=form
    )
    command.add_arguments(parser)
    return parser.format_help()


TABLES = {
    "metrics.md": (metrics,),
    "journal.md": (records,),
    "peaks.md": (peaks,),
    "report.md": (figures,),
}
"""By page, the functions that make its tables."""


def written(text, rows):
    """The page with the table whose first column is that of `rows`."""
    head = re.escape(rows.splitlines()[0].split(" | ")[0])
    page, count = re.subn(rf"^{head} \|(?:.*\n)(?:\|.*\n)+", lambda _: rows, text, count=1, flags=re.MULTILINE)
    assert count == 1
    return page


def with_commands(page):
    """The page `docs/commands.md` with the sections of all commands."""
    return page.partition("\n## ")[0].rstrip("\n") + "\n" + commands()


if __name__ == "__main__":
    list_of_commands = DOCS / "commands.md"
    list_of_commands.write_text(with_commands(list_of_commands.read_text(encoding="utf-8")), encoding="utf-8")
    for name, tables in TABLES.items():
        page = DOCS / name
        for rows in tables:
            page.write_text(written(page.read_text(encoding="utf-8"), rows()), encoding="utf-8")
