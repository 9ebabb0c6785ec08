"""Does following the advice on loaders gain what it promised?

    OMP_NUM_THREADS=1 python benchmarks/verdicts_followed.py

The runs are those of `verdicts.py` with a slow loader. Rows are waited for, as for a disk, or computed. The model
computes on the CPU, or waits for a part of the time, as for a device. Each run is trained without and with the workers
that were advised, in turn. The gain is that of a mean step. The promise is the range of the finding: the last columns
show it in milliseconds, and the number of pairs whose gain lies within.
"""

import argparse
import functools
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import verdicts

ROWS = {"waited for": time.sleep, "computed": verdicts.spin}
DEVICE_SECONDS = 0.01
KINDS = {
    "rows waited for, host computes": ("waited for", 0.0),
    "rows waited for, device computes": ("waited for", DEVICE_SECONDS),
    "rows computed, host computes": ("computed", 0.0),
    "rows computed, device computes": ("computed", DEVICE_SECONDS),
}
"""How rows are made, and how long the training thread waits in each forward, as for a device."""


def followed(doors, seeds):
    """Train without and with the workers that were advised, in turn, and compare the gain with the promise."""
    columns = "integration, run, workers advised, step, promised gain, measured gain, within, each (ms)"
    print(f"| {columns.replace(', ', ' | ')} |\n" + 8 * "|---" + "|")
    for kind, (rows, device_seconds) in KINDS.items():
        every = []
        for door in doors:
            workers, pairs = _pairs(door, seeds, {"take": ROWS[rows], "device_seconds": device_seconds})
            _compare(door, kind, workers, pairs)
            every += pairs
        _compare("all", kind, "", every)


def _pairs(door, seeds, options):
    """Return the workers advised first, and for each seed the step without them, the promise and the gain."""
    workers, pairs = 0, []
    for number, seed in enumerate(seeds):  # without, with, with, without: the pace of the machine drifts
        run = functools.partial(verdicts.train, door, "data", seed, **options)
        quick = run(workers=workers)[0] if number % 2 and workers else None
        slow = run()[0]
        workers = workers or _advised(slow)
        if _advised(slow):
            quick = quick or run(workers=workers)[0]
            pairs.append((slow.step_time, *_promised(slow), slow.step_time - quick.step_time))
    return workers, pairs


def _compare(door, kind, workers, pairs):
    if not pairs:  # other programs use the CPUs
        print(f"| {door} | {kind} | none | — | — | — | — | — |", flush=True)
        return
    step, low, high, gain = (f"{1e3 * statistics.median(times):.1f}" for times in zip(*pairs, strict=True))
    within = sum(low <= gain <= high for _, low, high, gain in pairs)
    each = ", ".join(f"{1e3 * gain:.1f}" for *_, gain in pairs)
    cells = door, kind, workers, f"{step} ms", f"{low} to {high} ms", f"{gain} ms", f"{within} of {len(pairs)}", each
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _loading(summary):
    return next((found for found in summary.findings if found.cause == "data"), None)


def _advised(summary):
    advice = _loading(summary)
    return int(advice.remedy.rstrip(")").rpartition("=")[2]) if advice and "num_workers=" in advice.remedy else 0


def _promised(summary):
    """Seconds per step that the advice saves at least and at most. Shares are shares of the whole fit after startup."""
    wall, advice = summary.wall_seconds, _loading(summary)
    seconds = (sum(wall.values()) - wall["startup"]) / wall["steps"] * summary.step_time
    return (advice.low or 0.0) * seconds, advice.share * seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--doors", nargs="+", choices=verdicts.DOORS, default=verdicts.DOORS, help="integrations")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    verdicts.prepare(arguments.doors)
    followed(arguments.doors, range(arguments.first_seed, arguments.first_seed + arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
