"""What `perf-callbacks compare` says of five runs against five, on a machine that is busy now and then.

    python benchmarks/many_runs.py --runs 80 --to out/many    # 12 minutes; --runs 12 makes the next 12
    python benchmarks/many_runs.py --resample --to out/many
    python benchmarks/many_runs.py --simulate                 # no runs: how many are needed for a change of 5 %

The first command records 40 runs of one training, eight each beside 0 to 4 busy processes, and 40 runs with 5 % added
to each step, beside no busy process. The order is shuffled. A run is a process of its own, forked after the imports,
that trains for six seconds.
A step with 5 % added goes on for another 5 % of its duration before the next step begins.

With `--wait-ms 10` each step also waits, as for a device. The machine must do nothing else.

The second command draws 40 pairs of sets of five runs for each row, and compares set with set: as `compare` does, and
without what the journals say of the load.
"""

import argparse
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import median

import torch
import torch._dynamo  # else each forked run would import it with its optimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from perf_callbacks import PerfConfig
from perf_callbacks.journal import Summary
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.loop import measure
from perf_callbacks.report import comparison, comparison_text, report_file
from perf_callbacks.report.batch_means import Estimate, change_between_runs
from perf_callbacks.report.compared_run import ESTIMATORS, QUICK, ComparedRun
from perf_callbacks.report.history import Attempt

LOADS, EACH, ADDED = 5, 8, 0.05

SECONDS = 6.0

BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10_000))"
"""A busy process, which ends when its parent is gone."""


def schedule() -> list[tuple[str, int, int]]:
    """Kind, load and number of each run, in the order in which they are made."""
    base = [("base", load, number) for number in range(EACH) for load in range(LOADS)]
    slower = [("slower", 0, number) for number in range(LOADS * EACH)]
    runs = base + slower
    random.Random(0).shuffle(runs)
    return runs


def train(directory: Path, added: float, seconds: float, wait_seconds: float) -> None:
    """Train for some seconds, and record the run."""
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 10, (2048,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    began = time.perf_counter()
    ends = began + seconds
    config = PerfConfig(output_dir=str(directory), flops="off")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        while began < ends:
            for inputs, labels in perf.loader:
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                if wait_seconds:
                    time.sleep(wait_seconds)
                optimizer.step()
                optimizer.zero_grad()
                done = time.perf_counter()
                while time.perf_counter() < done + added * (done - began):
                    pass
                began = time.perf_counter()
                if began >= ends:
                    break


def record(directory: Path, most: int, seconds: float, wait_seconds: float) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for kind, load, number in schedule():
        final = directory / f"{kind}-load{load}-{number}"
        if final.exists():
            continue
        if most == 0:
            return
        most -= 1
        part = directory / f"part-{os.getpid()}-{final.name}"
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(load)]
        child = os.fork()
        if child == 0:
            with redirect_stdout(StringIO()):
                train(part, ADDED if kind == "slower" else 0.0, seconds, wait_seconds)
            os._exit(0)
        try:
            if os.waitpid(child, 0)[1]:
                raise RuntimeError(f"{final.name} failed")
        finally:
            for one in busy:
                one.kill()
                one.wait()
        part.rename(final)
        print(final.name, flush=True)


SETS, SIZE = 40, 5

Drawn = tuple[list[str], list[str]]


def drawn(names: Sequence[str], rng: random.Random) -> dict[str, Drawn]:
    """Draw a pair of sets for each row of the table."""

    def some(*beginnings: str, size: int = SIZE) -> list[str]:
        return rng.sample([name for name in names if name.startswith(beginnings)], size)

    base, quiet = some("base", size=2 * SIZE), some("slower", size=2 * SIZE)
    return {
        "alike, load 0 to 4": (base[:SIZE], base[SIZE:]),
        "alike, load 0": (quiet[:SIZE], quiet[SIZE:]),
        "alike, load 0 against 3 and 4": (some("base-load0"), some("base-load3", "base-load4")),
        "5 % slower, load 0": (some("base-load0"), some("slower")),
        "5 % slower at load 0, base at 0 to 4": (some("base"), some("slower")),
    }


def answer(found: comparison.Comparison) -> str:
    """Return the answer in a word."""
    said = comparison_text.verdict(found)
    for beginning, word in {"B is slower": "slower", "B is faster": "faster", "Not decided": "refused"}.items():
        if said.startswith(beginning):
            return word
    return "undecided, or no regression"


def resample(directory: Path, fail_over: float) -> None:
    """Compare the drawn sets, and print a table."""
    runs = {path.name: report_file.fits(path)[-1].last for path in sorted(directory.iterdir()) if "-load" in path.name}
    runs = {name: run for name, run in runs.items() if not name.startswith("part")}
    table(runs)
    print("\n| sets | slower | faster | undecided, or no regression | refused | exit status 1 |")
    print("|---|---|---|---|---|---|")
    for title, seen in {"": runs, ", loads unknown": {name: without_load(run) for name, run in runs.items()}}.items():
        counts: dict[str, Counter[str]] = {}
        for seed in range(SETS):
            for row, sides in drawn([*runs], random.Random(seed)).items():
                found = comparison.compare(*[[seen[name] for name in side] for side in sides], fail_over=fail_over)
                counts.setdefault(row, Counter()).update([answer(found), *(["exit"] if found.regression else [])])
        for row, count in counts.items():
            words = ("slower", "faster", "undecided, or no regression", "refused", "exit")
            print(f"| {row}{title} | {' | '.join(str(count[word]) for word in words)} |", flush=True)


def without_load(run: Sequence[Attempt]) -> list[Attempt]:
    """Return a run whose journals don't know the load."""
    return [
        replace(
            rank,
            entries=[
                Entry(one.t, replace(one.record, cpu=None)) if isinstance(one.record, Summary) else one
                for one in rank.entries
            ],
        )
        for rank in run
    ]


def table(runs: dict[str, list[Attempt]]) -> None:
    """Print the runs by kind and load."""
    kinds: dict[str, list[ComparedRun]] = {}
    for name, run in runs.items():
        kinds.setdefault(name.rpartition("-")[0], []).append(ComparedRun.from_ranks(run))
    print(
        "| runs | number | mean step, ms | quick step, ms | no CPU | CPUs of other programs |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    for kind, some in kinds.items():
        cells = [
            spread([1e3 * found.value for run in some if (found := ESTIMATORS[name](run)) is not None])
            for name in ("step_time", QUICK)
        ]
        cells += [
            spread([run.load.no_cpu or 0.0 for run in some]),
            spread([(run.load.others or 0.0) * (run.load.cpus or 1) for run in some]),
        ]
        print(f"| {kind} | {len(some)} | {' | '.join(cells)} |")


def spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def simulate(trials: int = 2000) -> None:
    """Print how often runs with a known spread are called slower."""
    print("| runs differ by | runs on each side | alike runs called slower | 5 % slower runs called slower |")
    print("|---|---|---|---|")
    rng = random.Random(0)
    for spread_of_runs in (0.005, 0.01, 0.02, 0.03):
        for number in (3, 5, 10, 20):
            called = Counter[float]()
            for more in (0.0, ADDED):
                for _ in range(trials):
                    sides = [
                        [
                            Estimate((1 + longer) * math.exp(rng.gauss(0.0, spread_of_runs)), 0.0, 2)
                            for _ in range(number)
                        ]
                        for longer in (0.0, more)
                    ]
                    called[more] += change_between_runs(*sides).low > 0
            found = " | ".join(f"{100 * called[more] / trials:.1f} %" for more in (0.0, ADDED))
            print(f"| {100 * spread_of_runs:g} % | {number} | {found} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path("out/many"), help="directory of the runs")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="time that each step sleeps, as if for a device")
    parser.add_argument("--simulate", action="store_true", help="draw the runs from a normal distribution")
    parser.add_argument("--runs", type=int, default=0, help="number of runs to make, after those that exist")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration of a run")
    parser.add_argument("--resample", action="store_true", help="compare sets of the recorded runs")
    parser.add_argument("--fail-over", type=float, default=5.0, help="threshold of the exit status, in percent")
    arguments = parser.parse_args()
    if arguments.runs:
        record(arguments.to, arguments.runs, arguments.seconds, arguments.wait_ms / 1e3)
    if arguments.simulate:
        simulate()
    if arguments.resample:
        resample(arguments.to, arguments.fail_over / 100)


if __name__ == "__main__":
    main()
