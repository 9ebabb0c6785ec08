"""Answer what only a GPU can tell: whether MFU and times are true there, and what measuring costs and buys.

PYTHONPATH=src python benchmarks/gpu.py --out docs/results/DATE-DEVICE.md
PYTHONPATH=src python benchmarks/gpu.py --device sim --quick
PYTHONPATH=src python benchmarks/gpu.py --device cpu --quick

Each part is a table. A part that fails says why, and the others go on. A part that lacks a package says so. The file
is written anew after each part, so that a run that is cut off leaves the parts so far. Each part has planned seconds,
540 at most in all, and stops at its next round when they are over. "sim" is a device in Python, on which every part
runs that doesn't name CUDA. Needs torch and msgspec; the Llama needs transformers.
"""

import argparse
import faulthandler
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
from gpu import comparison, costs, graphs, numbers, placement, stamps
from gpu.allowance import TOTAL_SECONDS, Allowance
from gpu.bench import Bench, MissingError, Row, one_line

from perf_callbacks.kernel.process import device


@dataclass(frozen=True)
class Part:
    """A table: its name, title and columns, the planned seconds, and the function that fills it."""

    name: str
    title: str
    seconds: int
    columns: Row
    rows: Callable[[Bench], Iterable[Row]]


PARTS = (
    Part("machine", "The machine", 15, ("what", "value"), numbers.machine),
    Part("truth", "FLOPs, times, MFU and HFU beside the truth", 50, stamps.COLUMNS, numbers.truth),
    Part("placement", "Times on another stream than the usual", 20, stamps.COLUMNS, placement.placement),
    Part("same", "The counted step computes the same", 30, ("what", "result"), numbers.same),
    Part("overhead", "Time that measuring adds to a step", 145, comparison.COLUMNS, costs.overhead),
    Part("collections", "Time that the item gc adds to a step", 45, comparison.COLUMNS, costs.collections),
    Part("loaders", "Time that the item loaders adds to a step", 45, comparison.COLUMNS, costs.loaders),
    Part("graphs", "CUDA graphs that are captured in a measured loop", 30, graphs.COLUMNS, graphs.captures),
)
"""Parts in order. Graphs come last: a capture that fails may leave CUDA unusable."""


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "sim", "cpu"))
    parser.add_argument("--quick", action="store_true", help="a small form, whose numbers mean nothing")
    parser.add_argument("--parts", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--out", type=Path, help="a Markdown file for all of it")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use; --device sim --quick and --device cpu --quick try the rest")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    chosen = [part for part in PARTS if part.name in arguments.parts]
    faulthandler.dump_traceback_later(TOTAL_SECONDS + 30, exit=True)  # a device that hangs: say where
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(device_of(arguments.device), arguments.quick, Path(directory))
        failed = run(chosen, bench, arguments.out)
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(chosen)} parts, of which {failed} failed")
    return int(failed > 0)


def device_of(kind: str) -> torch.device:
    """The device under test."""
    if kind == "sim":
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        import simulated_device

        simulated_device.install(clock="host", memory="nested", graphs=True)
    return torch.device("cpu" if kind == "cpu" else f"{kind}:0")


def run(parts: Iterable[Part], bench: Bench, out: Path | None) -> int:
    """Print each part, and write all so far; how many failed."""
    small = ", in a small form whose numbers mean nothing" if bench.quick else ""
    title = f"# Measured on {device.of(bench.device).name}{small}\n"
    failed, report = 0, [title, f"`python benchmarks/gpu.py`, {time.strftime('%Y-%m-%d')}, torch {torch.__version__}\n"]
    for part in parts:
        began = time.perf_counter()
        rows, broke = table(part, bench)
        failed += broke
        gc.collect()
        if bench.cuda:
            torch.cuda.empty_cache()
        body = "\n".join("| " + " | ".join([*row, *[""] * (len(part.columns) - len(row))]) + " |" for row in rows)
        took = f"`--parts {part.name}`, {time.perf_counter() - began:.0f} s of {part.seconds} planned"
        report.append(f"## {part.title}\n\n{took}\n\n{body}\n")
        print(report[-1], flush=True)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("\n".join(report), encoding="utf-8")
    return failed


def table(part: Part, bench: Bench) -> tuple[list[Row], bool]:
    """The rows of a part, with all that it could not do; True if it failed."""
    rows: list[Row] = [part.columns, ("---",) * len(part.columns)]
    allowance: Allowance = bench.allowance
    if allowance.left <= 0:
        return [*rows, (f"left out: the {TOTAL_SECONDS:.0f} seconds of all parts are over",)], False
    allowance.begin(part.seconds)
    failed = False
    try:
        rows.extend(part.rows(bench))
    except MissingError as missing:
        rows.append((f"left out: {missing}",))
    except ImportError as error:
        rows.append((f"left out: {one_line(error)}",))
    except Exception as error:  # noqa: BLE001 the others go on
        traceback.print_exc()
        failed = True
        rows.append((f"failed: {one_line(error)}",))
    rows.extend((cut,) for cut in allowance.cuts)
    return rows, failed or bool(allowance.failed)


if __name__ == "__main__":
    sys.exit(main())
