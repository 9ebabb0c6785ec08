"""Tables of the documentation that come from registries. `make tables` writes them."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from perf_callbacks.flops.peaks.device_peaks import DEVICES
from perf_callbacks.journal import Record
from perf_callbacks.kernel.records.metric_table import METRICS

DOCS = Path(__file__).parents[1] / "docs"


def table(*rows):
    """A table in Markdown. The first row is the head."""
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body]) + "\n"


def metrics():
    """The table of `docs/metrics.md`."""
    rows = [(f"`{metric.key}`", metric.unit, metric.meaning, ", ".join(metric.needs)) for metric in METRICS]
    return table(("metric", "unit", "meaning", "needs"), *rows)


def records():
    """The table of `docs/journal.md`."""
    rows = [
        (
            f"`{kind.__name__.lower()}`",
            " ".join(kind.__doc__.split("\n\n")[0].split()),
            ", ".join([f"`{field.name}`" for field in fields(kind)]),
        )
        for kind in get_args(Record)
    ]
    return table(("type", "content", "fields"), *rows)


def peaks():
    """The table of `docs/peaks.md`."""
    formats = ("float32", "tfloat32", "float16", "bfloat16", "float8")
    rows = [
        (row.called, *[f"{row.tflops[name]:g}" if name in row.tflops else "—" for name in formats], row.source)
        for row in DEVICES
    ]
    return table(("device", "fp32", "tf32", "fp16", "bf16", "fp8", "source"), *rows)


TABLES = {"metrics.md": metrics, "journal.md": records, "peaks.md": peaks}


def written(text, rows):
    """The page with the table whose head is that of `rows`."""
    head = re.escape(rows.splitlines()[0].split(" | ")[0])
    page, count = re.subn(rf"^{head} \|(?:.*\n)(?:\|.*\n)+", lambda _: rows, text, count=1, flags=re.MULTILINE)
    assert count == 1
    return page


if __name__ == "__main__":
    for name, rows in TABLES.items():
        page = DOCS / name
        page.write_text(written(page.read_text(encoding="utf-8"), rows()), encoding="utf-8")
