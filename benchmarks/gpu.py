"""What only a GPU can tell: whether MFU is true, whether anything waits for the device, what measuring costs there.

PYTHONPATH=src python benchmarks/gpu.py --out docs/results/DATE-DEVICE.md
PYTHONPATH=src python benchmarks/gpu.py --device cpu --quick

Each part is a table. What can't be had without a GPU says so; a part that fails says why, and the others go on. The
file is written anew after each part, so that a run that is cut off leaves what it has. In full it is meant to take at
most eight minutes on one H100; a part that would begin later than `--seconds` is left out.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from gpu import counted, loaders, machine, overhead, pauses, timeline, utilization, waiting
from gpu.bench import Bench, Row, one_line

from perf_callbacks.host import device


@dataclass(frozen=True)
class Part:
    """A table: what it is about, its columns, and who fills it."""

    name: str
    title: str
    columns: Row
    rows: Callable[[Bench], Iterable[Row]]


PARTS = (
    Part("machine", "The machine", ("what", "value"), machine.rows),
    Part("utilization", "MFU and HFU, beside the truth", utilization.COLUMNS, utilization.rows),
    Part("waiting", "Calls that wait for the device, and others, per step", waiting.COLUMNS, waiting.rows),
    Part("overhead", "What measuring adds to a step", overhead.COLUMNS, overhead.rows),
    Part("timeline", "Times of steps and stages, beside independent events", timeline.COLUMNS, timeline.rows),
    Part("same", "The counted step computes the same", counted.COLUMNS, counted.same),
    Part("ended", "The end of a counted backward is heard of", counted.COLUMNS, counted.ended),
    Part("cost", "What the counted step costs", counted.COLUMNS, counted.cost),
    Part("loaders", "Batches from workers", loaders.COLUMNS, loaders.rows),
    Part("copies", "What batches were copied from", loaders.COPIED, loaders.copies),
    Part("proved", 'What checklist="prove" finds', loaders.PROVED, loaders.proved),
    Part("pauses", "Garbage collections, hidden or exposed", pauses.COLUMNS, pauses.rows),
    Part("compiled", "A compiled model stays compiled", counted.COLUMNS, counted.compiled),
)
"""In this order: once something is compiled in a process, counting goes other ways."""


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="a small form, whose numbers mean nothing")
    parser.add_argument("--parts", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=420, help="after which no part begins")
    parser.add_argument("--out", type=Path, help="a Markdown file for all of it")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use; --device cpu --quick tries the rest")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    chosen = [part for part in PARTS if part.name in arguments.parts]
    with tempfile.TemporaryDirectory() as directory:
        where = torch.device("cuda:0" if arguments.device == "cuda" else "cpu")
        failed = run(chosen, Bench(where, arguments.quick, Path(directory)), arguments.seconds, arguments.out)
    print(f"{len(chosen)} parts, of which {failed} failed")
    return int(failed > 0)


def run(parts: Iterable[Part], bench: Bench, seconds: float, out: Path | None) -> int:
    """Print each part, and write all so far; how many failed."""
    began, failed, report = time.perf_counter(), 0, [_heading(bench)]
    for part in parts:
        if time.perf_counter() - began > seconds:
            report.append(_text(part, [("left out: there was no time left",)], 0.0))
        else:
            text, fails = _filled(part, bench)
            report.append(text)
            failed += fails
        print(report[-1], flush=True)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("\n".join(report), encoding="utf-8")
    return failed


def _filled(part: Part, bench: Bench) -> tuple[str, bool]:
    """A part with the rows that it came to, and whether it came to its end."""
    began, table, failed = time.perf_counter(), [], False
    try:
        table.extend(part.rows(bench))
    except Exception as error:  # noqa: BLE001 the others go on
        traceback.print_exc()
        failed = True
        table.append((f"failed: {one_line(error)}",))
    gc.collect()
    if bench.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return _text(part, table, time.perf_counter() - began), failed


def _heading(bench: Bench) -> str:
    small = ", in a small form whose numbers mean nothing" if bench.quick else ""
    return (
        f"# Measured on {device.name(bench.device)}{small}\n\n`python benchmarks/gpu.py`, {time.strftime('%Y-%m-%d')}\n"
    )


def _text(part: Part, table: list[Row], seconds: float) -> str:
    """A table in Markdown."""
    lines = [part.columns, ("---",) * len(part.columns), *table]
    body = "\n".join("| " + " | ".join([*row, *[""] * (len(part.columns) - len(row))]) + " |" for row in lines)
    return f"## {part.title}\n\n`--parts {part.name}`, {seconds:.0f} s\n\n{body}\n"


if __name__ == "__main__":
    sys.exit(main())
