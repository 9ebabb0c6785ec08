"""What a report costs: journals of a long job on many ranks, and the time and memory of reading them.

    python benchmarks/report.py                                     # 100,000 steps on each of 8 ranks
    python benchmarks/report.py --steps 20000 --ranks 2 --keep out  # and keep the journals and the page

The job is made up: steps of a fiftieth of a second with noise, rank 3 with a slow loader for a while, long garbage
collections, evaluations, checkpoints, a restart that repeats steps, and a stall.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Checklist, Finding, Gc, Record, Run, Span, Steps, Summary
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.kernel.records.summary_parts import FlopsSummary, GcSummary

BLOCK = 256
MODEL_FLOPS = 9_600_000_000_000
PEAK = 989.5e12
EVALUATE_EVERY = 5_000
SAVE_EVERY = 10_000
COLLECT_EVERY = 1_000
SLOW_RANK = 3
STEP_SECONDS = 0.02

FINDING = Finding(
    cause="data",
    share=0.083,
    evidence="Waiting for data took 8% of the run: num_workers=2",
    remedy="DataLoader(num_workers=6)",
)

CHECKLIST = (
    Checklist(
        item="gc",
        status="applied",
        before="automatic, thresholds 700/10/10",
        after="every 100 steps, full every 1,000",
        why="all ranks collect at the same step",
    ),
    Checklist(item="affinity", status="applied", before="CPUs 0-127", after="CPUs 0-15", why="near GPU 0"),
    Checklist(item="loaders", status="already so", before="pinned"),
)


def a_run(rank: int, ranks: int, attempt: int, step: int) -> Run:
    return Run(
        run_id="5d1c2f",
        attempt=attempt,
        step=step,
        rank=rank,
        world_size=ranks,
        device="NVIDIA H100 80GB HBM3",
        timeline="device",
        door="transformers",
        versions={"perf_callbacks": "1.0", "python": "3.11.9", "torch": "2.13.0", "transformers": "5.23.0"},
        config={"gc": "sync", "gc_interval": 100, "flops": "count"},
        from_env=("gc",),
        started_unix=1_795_000_000.0 + attempt * 50_000,
    )


def a_count(step: int) -> Flops:
    return Flops(
        step=step,
        model_flops=MODEL_FLOPS,
        hardware_flops=MODEL_FLOPS * 4 // 3,
        by_phase={"forward": MODEL_FLOPS // 3, "backward": MODEL_FLOPS * 2 // 3, "recompute": MODEL_FLOPS // 3},
        by_dtype={"bfloat16": MODEL_FLOPS},
        source="counted",
        coverage=0.994,
        uncounted={"mylib::fused_rope": 64},
        lower_bound=True,
        products=(
            ("mm", "[8192, 4096] x [4096, 14336]", "bfloat16", MODEL_FLOPS // 2),
            ("mm", "[8192, 4096] x [4096, 4096]", "bfloat16", MODEL_FLOPS // 4),
            ("mm", "[8192, 4096] x [4096, 50257]", "bfloat16", MODEL_FLOPS // 8),
            ("_flash_attention_forward", "[4, 32, 2048, 128]", "bfloat16", MODEL_FLOPS // 16),
        ),
    )


def times_of(step: int, rank: int, noise: random.Random) -> dict[str, float]:
    """The stages of one step, and its time."""
    slow = rank == SLOW_RANK and 30_000 < step < 36_000
    pause = noise.uniform(0.02, 0.2) if step % COLLECT_EVERY == rank else 0.0
    stages = {
        "data": noise.lognormvariate(-7, 0.4) + (0.004 if slow else 0.0),
        "forward": STEP_SECONDS / 3 * noise.lognormvariate(0, 0.03),
        "backward": STEP_SECONDS * 0.6 * noise.lognormvariate(0, 0.03),
        "optimizer": 0.001,
        "gc": pause,
        "other": 0.0005 + (2.0 if noise.random() < 2e-5 else 0.0),
    }
    return {**stages, "step": sum(stages.values())}


def block(numbers: range, rank: int, noise: random.Random, now: float) -> Iterator[Entry]:
    """The records of some steps."""
    columns: dict[str, list[float]] = {name: [] for name in times_of(1, rank, random.Random(0))}
    events: list[Record] = []
    for step in numbers:
        times = times_of(step, rank, noise)
        for name, column in columns.items():
            column.append(times[name])
        if times["gc"]:
            pause = {"generation": 2, "collected": 10_000, "automatic": True}
            events.append(Gc(step=step, stage="other", start=now, seconds=times["gc"], **pause))
        now += times["step"]
        for kind, every, seconds in (("evaluation", EVALUATE_EVERY, 12.0), ("checkpoint", SAVE_EVERY, 6.0)):
            if step % every == 0:
                events.append(Span(kind=kind, step=step, start=now, seconds=seconds))
                now += seconds
    count = len(numbers)
    yield Entry(
        now,
        Steps(
            step=tuple(numbers),
            **{f"{name}_time": tuple(column) for name, column in columns.items()},
            model_flops=(MODEL_FLOPS,) * count,
            samples=(4,) * count,
            tokens=(8192,) * count,
            excluded=tuple("counted" if step % 50_000 == 2 else None for step in numbers),
        ),
    )
    yield from (Entry(now, event) for event in events)


def attempt(rank: int, ranks: int, number: int, first: int, last: int) -> Iterator[Entry]:
    """The records of one rank from one start to the next, the steps first + 1 to last."""
    noise = random.Random(rank * 10 + number)
    now = 0.0
    yield Entry(now, a_run(rank, ranks, number, first))
    yield from (Entry(now, item) for item in CHECKLIST)
    for start in range(first, last, BLOCK):
        for entry in block(range(start + 1, min(start + BLOCK, last) + 1), rank, noise, now):
            now = entry.t
            yield entry
    yield Entry(now, a_count(first + 2))
    if number == 1:
        yield Entry(now, Stall(step=last, rank=SLOW_RANK, stage="data", since_seconds=61.0, stack=("train.py:9 main",)))
    else:
        yield Entry(now, FINDING)
        yield Entry(now, a_summary(number, last, last - first, now))


def a_summary(number: int, last: int, steps: int, now: float) -> Summary:
    return Summary(
        run_id="5d1c2f",
        attempt=number,
        step=last,
        steps=steps,
        included_steps=steps - 2,
        included_seconds=now * 0.95,
        stage_seconds={
            "data_time": now * 0.1,
            "forward_time": now * 0.3,
            "backward_time": now * 0.5,
            "optimizer_time": now * 0.03,
            "gc_time": now * 0.005,
            "other_time": now * 0.015,
        },
        wall_seconds={"startup": 2.1, "first_step": 4.0, "steps": now * 0.95, "evaluation": now * 0.05},
        samples=4 * steps,
        tokens=8192 * steps,
        included_samples=4 * steps,
        included_tokens=8192 * steps,
        included_useful_tokens=None,
        flops=FlopsSummary(
            model_flops=MODEL_FLOPS * steps,
            hardware_flops=MODEL_FLOPS * steps * 4 // 3,
            seconds=now * 0.95,
            steps=steps,
            source="counted",
            coverage=0.994,
            lower_bound=True,
            dtype="bfloat16",
            peak_flops_per_second=PEAK,
            peak_source="NVIDIA H100 data sheet",
        ),
        total_samples=None,
        total_tokens=None,
        gc=GcSummary(collections=(900, 90, 100), seconds=11.0, longest=0.2),
        findings=(FINDING,),
    )


def write(directory: Path, steps: int, ranks: int) -> int:
    """Write the journals and return their bytes. The second attempt repeats the last tenth of the first."""
    folder = directory / "perf_callbacks"
    folder.mkdir(parents=True)
    stopped, resumed = steps * 6 // 10, steps * 54 // 100
    for rank in range(ranks):
        with (folder / f"rank{rank}.jsonl").open("w") as journal:
            for entry in attempt(rank, ranks, 1, 0, stopped):
                journal.write(encode(entry) + "\n")
            for entry in attempt(rank, ranks, 2, resumed, steps):
                journal.write(encode(entry) + "\n")
    return sum(file.stat().st_size for file in folder.iterdir())


def measured(command: str, directory: Path, *words: str) -> str:
    """Run a command in a process of its own, and say what it took."""
    script = f"""import resource, sys, time
from perf_callbacks.commands import main
main({[command, str(directory), *words]!r})
used = resource.getrusage(resource.RUSAGE_SELF)
print(f"{{used.ru_utime + used.ru_stime:.1f}} s of CPU time, {{used.ru_maxrss / 1024:.0f}} MiB at most")"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    path, took = done.stdout.splitlines()
    return f"perf-callbacks {' '.join([command, *words])}: {took}, a file of {Path(path).stat().st_size / 1e6:.2f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="a directory for the journals, the page and the trace")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.keep or Path(temporary)
        size = write(directory, arguments.steps, arguments.ranks)
        print(f"{arguments.steps:,} steps on {arguments.ranks} ranks: {size / 1e6:.1f} MB of journals")
        print(measured("report", directory))
        print(measured("trace", directory, "--steps", "1-1000"))
        if not arguments.keep:
            print(measured("trace", directory))


if __name__ == "__main__":
    main()
