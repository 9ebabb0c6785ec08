"""What checklist="prove" finds out of garbage collection: in a loop where it matters, and in two where it doesn't.

python benchmarks/proving.py --runs 20 --pairs 10

Each run is a process of its own, with a seed of its own. `objects` holds many objects, makes some in each step, and
keeps those for a while; `sleep` and `matmul` make none. Beside the proofs, the first seeds run whole with the
collector left alone and whole with `gc="sync"`, by turns: what that saved is what a proof should say, and the losses
should not differ.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import torch
from turns import interval

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.codec import attempts
from perf_callbacks.kernel.records.fit_records import Checklist
from perf_callbacks.kernel.records.journal_file import read
from perf_callbacks.loop import measure

CONFIGS = {
    "prove": {"checklist": "prove"},
    "observe": {"gc": "observe"},
    "sync": {"gc": "sync"},
}
SPANS = {"in the steps of the trial": (2, 1026), "from step 105 on": (104, None)}
"""Steps of whole runs that are compared: those that a proof is about, and those after the window has filled."""


class Objects:
    """Garbage collection matters: there is much to go through, and a reason to."""

    def __init__(self, options):
        self.made = options.made
        self.held = [[number] for number in range(options.held)]
        self.window = deque(maxlen=options.window)

    def __call__(self):
        self.window.append([[number] for number in range(self.made)])


class Sleep:
    """A step that waits, as for a device."""

    def __init__(self, options):
        self.seconds = options.sleep

    def __call__(self):
        time.sleep(self.seconds)


class Matmul:
    """A step that computes."""

    def __init__(self, options):
        self.weights = torch.randn(options.size, options.size)

    def __call__(self):
        self.weights @ self.weights


LOOPS = {"objects": Objects, "sleep": Sleep, "matmul": Matmul}


class Batches:
    def __init__(self, steps):
        self.steps = steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        return (torch.randn(4, 8) for _ in range(self.steps))


def one(options):
    """One run, in this process."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    busy = LOOPS[options.loop](options)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ends = []
    with tempfile.TemporaryDirectory() as directory:
        config = PerfConfig(output_dir=directory, flops="off", **CONFIGS[options.config])
        with measure(model=model, optimizer=optimizer, loader=Batches(options.steps), config=config) as perf:
            for batch in perf.loader:
                busy()
                loss = (model(batch) - batch).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                ends.append(time.perf_counter())
        (attempt,) = attempts(read(Path(directory) / "perf_callbacks" / "rank0.jsonl"))
        rows = [entry.record for entry in attempt]
    (*_, row) = [row for row in rows if isinstance(row, Checklist) and row.item == "gc"]
    steps = {name: mean_step(ends[first - 1 : last]) for name, (first, last) in SPANS.items()}
    return {"status": row.status, "why": row.why, "saved": row.saved_seconds, "steps": steps, "loss": loss.item()}


def mean_step(ends):
    return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else float("nan")


def run(loop, config, seed, options):
    """The same in a process of its own."""
    passed = [
        f"--{name}={value}" for name, value in vars(options).items() if name not in {"loops", "loop", "config", "seed"}
    ]
    command = [sys.executable, __file__, *passed, f"--loop={loop}", f"--config={config}", f"--seed={seed}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def check(loop, options):
    """All runs of one loop, and what came of them."""
    others = ("observe", "sync") if loop == "objects" else ("observe",)
    proofs, gained, same = [], {name: [] for name in SPANS}, 0
    for seed in range(options.runs):
        found = run(loop, "prove", seed, options)
        proofs.append(found)
        print(f"  {loop}, seed {seed}: {found['status']}: {found['why']}", file=sys.stderr, flush=True)
        if seed < options.pairs:
            whole = {name: run(loop, name, seed, options) for name in others[:: 1 if seed % 2 else -1]}
            same += all(one["loss"] == found["loss"] for one in whole.values())
            for name in SPANS if "sync" in whole else ():
                gained[name].append((whole["observe"]["steps"][name] - whole["sync"]["steps"][name]) * 1e3)
    report(loop, proofs, gained, f"{same} of {min(options.pairs, options.runs)}")


def report(loop, proofs, gained, same):
    kept = sum(proof["status"] == "applied" for proof in proofs)
    print(f"{loop}: kept in {kept} of {len(proofs)} runs; final loss as without it in {same}")
    told = [[seconds * 1e3 for seconds in proof["saved"]] for proof in proofs if proof["saved"]]
    if not told:
        return
    low, saved, high = ([row[column] for row in told] for column in range(3))
    print(f"  saved, ms of a step: median {statistics.median(saved):.3f}, {min(saved):.3f} to {max(saved):.3f}")
    print(f"  ends of the 99.9 % interval, median: {statistics.median(low):.3f} and {statistics.median(high):.3f}")
    print(f"  intervals that hold 0: {sum(a <= 0 <= b for a, _, b in told)} of {len(told)}")
    for name, values in gained.items():
        if values:
            found = interval(values)
            median = statistics.median(values)
            ends = f"[{found.low:.3f}, {found.high:.3f}]"
            print(f"  whole runs, {name}: {median:.3f} less with gc=sync, {ends}, {len(values)} pairs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=10, help="runs beside which the loop also runs whole, both ways")
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--held", type=int, default=400_000, help="objects that live as long as the job")
    parser.add_argument("--made", type=int, default=2000, help="objects made in each step")
    parser.add_argument("--window", type=int, default=100, help="steps for which these are kept")
    parser.add_argument("--sleep", type=float, default=0.002, help="seconds")
    parser.add_argument("--size", type=int, default=512, help="of the matrices that are multiplied")
    parser.add_argument("--loops", nargs="*", default=[*LOOPS], choices=LOOPS)
    parser.add_argument("--loop", choices=LOOPS, help="one run of one loop, in this process; so the next two")
    parser.add_argument("--config", choices=CONFIGS, default="prove")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.loop:
        print(json.dumps(one(chosen)))
    else:
        for each in chosen.loops:
            check(each, chosen)
