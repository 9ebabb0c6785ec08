"""Answer what only a GPU can tell: whether MFU and times are true there, and what measuring costs and buys.

PYTHONPATH=src python benchmarks/gpu.py --out docs/results/DATE-DEVICE.md
PYTHONPATH=src python benchmarks/gpu.py --device cpu --quick

Each part is a table. A part that fails says why, and the others go on. The file is written anew after each part, so
that a run that is cut off leaves the parts so far. In full it is meant to take at most eight minutes on one H100.
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
from gpu import costs, numbers
from gpu.bench import Bench, Row, one_line

from perf_callbacks.kernel.process import device


@dataclass(frozen=True)
class Part:
    """A table: its name, title and columns, and the function that fills it."""

    name: str
    title: str
    columns: Row
    rows: Callable[[Bench], Iterable[Row]]


PARTS = (
    Part("machine", "The machine", ("what", "value"), numbers.machine),
    Part("truth", "FLOPs, times, MFU and HFU beside the truth", numbers.COLUMNS, numbers.truth),
    Part("same", "The counted step computes the same", ("what", "result"), numbers.same),
    Part("overhead", "Time that measuring adds to a step", costs.COLUMNS, costs.overhead),
    Part("collections", "Time that the item gc adds to a step", costs.COLUMNS, costs.collections),
    Part("loaders", "Time that the item loaders adds to a step", costs.COLUMNS, costs.loaders),
)


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="a small form, whose numbers mean nothing")
    parser.add_argument("--parts", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names))
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
        failed = run(chosen, Bench(where, arguments.quick, Path(directory)), arguments.out)
    print(f"{len(chosen)} parts, of which {failed} failed")
    return int(failed > 0)


def run(parts: Iterable[Part], bench: Bench, out: Path | None) -> int:
    """Print each part, and write all so far; how many failed."""
    small = ", in a small form whose numbers mean nothing" if bench.quick else ""
    title = f"# Measured on {device.of(bench.device).name}{small}\n"
    failed, report = 0, [title, f"`python benchmarks/gpu.py`, {time.strftime('%Y-%m-%d')}\n"]
    for part in parts:
        began, table = time.perf_counter(), [part.columns, ("---",) * len(part.columns)]
        try:
            table.extend(part.rows(bench))
        except Exception as error:  # noqa: BLE001 the others go on
            traceback.print_exc()
            failed += 1
            table.append((f"failed: {one_line(error)}",))
        gc.collect()
        body = "\n".join("| " + " | ".join([*row, *[""] * (len(part.columns) - len(row))]) + " |" for row in table)
        report.append(f"## {part.title}\n\n`--parts {part.name}`, {time.perf_counter() - began:.0f} s\n\n{body}\n")
        print(report[-1], flush=True)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("\n".join(report), encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
