"""What `perf-callbacks compare` says of two halves of one run, and of one with 10 % added to its steps.

    OMP_NUM_THREADS=1 python benchmarks/compare_power.py [--runs 20] [--steps 3000]
    OMP_NUM_THREADS=1 python benchmarks/compare_power.py --steps 300 --wait-ms 10

Each run is a plain loop that is really trained and recorded. Its halves are compared as they were recorded, and
resampled: steps drawn in blocks of 20 from the whole run, which takes out whatever made one half slower than the other,
such as another program. A right answer is no regression for equal halves, and a regression with 10 % added.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import torch

from perf_callbacks import PerfConfig
from perf_callbacks.journal import Entry, Run, Steps, read
from perf_callbacks.loop import measure
from perf_callbacks.report import comparison
from perf_callbacks.report.history import Attempt, gather

BLOCK = 20
"""Neighbouring steps that are drawn together."""

ADDED = 1.1


def record(steps: int, width: int, wait_ms: float) -> tuple[Run, list[float]]:
    """Train for real, and return the times of the steps that are in rows."""
    with tempfile.TemporaryDirectory() as directory, redirect_stdout(StringIO()):
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(3)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [torch.ones(16, width)] * steps
        config = PerfConfig(output_dir=directory, flops="off")
        with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
            for batch in perf.loader:
                model(batch).square().mean().backward()
                time.sleep(wait_ms / 1e3)
                optimizer.step()
                optimizer.zero_grad()
        records = [entry.record for entry in read(Path(directory))]
    run = next(one for one in records if isinstance(one, Run))
    rows = [
        (seconds, reason)
        for block in records
        if isinstance(block, Steps)
        for seconds, reason in zip(block.step_time, block.excluded or [None] * len(block.step), strict=True)
    ]
    return run, [seconds for seconds, reason in rows if reason is None and seconds is not None]


def fit(run: Run, times: Sequence[float], factor: float = 1.0) -> list[Attempt]:
    """A run with these steps, as its journal is read."""
    block = Steps(
        step=tuple(range(1, len(times) + 1)),
        step_time=tuple([factor * time for time in times]),
        samples=(16,) * len(times),
    )
    return gather([[Entry(0.0, run), Entry(1.0, block)]])[-1].last


def resampled(times: Sequence[float], rng: random.Random) -> list[float]:
    starts = [rng.randrange(len(times) - BLOCK) for _ in range(len(times) // BLOCK)]
    return [time for start in starts for time in times[start : start + BLOCK]]


def judged(run: Run, times: Sequence[float], factor: float, fail_over: float) -> comparison.Comparison:
    half = len(times) // 2
    return comparison.compare([fit(run, times[:half])], [fit(run, times[half:], factor)], fail_over=fail_over)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--width", type=int, default=64, help="size of the three layers")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="time that each step sleeps, as if for a device")
    parser.add_argument("--fail-over", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0, help="seed by which the first run is resampled")
    arguments = parser.parse_args()
    share = arguments.fail_over / 100
    right: Counter[tuple[str, str]] = Counter()
    deciders: Counter[str] = Counter()
    means, ratios = [], []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        run, times = record(arguments.steps, arguments.width, arguments.wait_ms)
        run = replace(run, config={})
        means.append(statistics.fmean(times))
        half = len(times) // 2
        ratios.append(statistics.fmean(times[half:]) / statistics.fmean(times[:half]))
        for name, drawn in (("as recorded", times), ("resampled", resampled(times, random.Random(seed)))):
            right[name, "equal"] += not judged(run, drawn, 1.0, share).regression
            slower = judged(run, drawn, ADDED, share)
            right[name, "slower"] += slower.regression
            if slower.regression and slower.decided_by is not None:
                deciders[slower.decided_by.name] += 1
    print(f"{arguments.runs} runs of {arguments.steps:,} steps; load average {os.getloadavg()[0]:.1f} at the end")
    print(f"mean step {1e3 * min(means):.3g} to {1e3 * max(means):.3g} ms")
    print(f"mean of the second half over that of the first: {min(ratios):.2f} to {max(ratios):.2f}\n")
    print("| halves | no regression without a change | regression with 10 % added |\n|---|---|---|")
    for name in ("as recorded", "resampled"):
        print(f"| {name} | {right[name, 'equal']} of {arguments.runs} | {right[name, 'slower']} of {arguments.runs} |")
    print("\nRegressions by the metric that decided: " + ", ".join(f"{name} {n}" for name, n in deciders.most_common()))


if __name__ == "__main__":
    main()
