"""Shares of profiles beside a stopwatch: ten programs on a CPU, each with phases of one kind.

A program runs its phases in three profiled steps, with a stopwatch around each phase. The trace is then reduced, and
each share of the profile is compared with the share of the phases by the stopwatch, in percentage points. Each program
runs five times; the table shows the run with the median difference, and the largest difference. Whatever interrupts
the process between two operations counts for the phase by the stopwatch, and for the host in the profile.

    python benchmarks/profile_shares.py
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

from perf_callbacks.profiles.reduction import reduce_file

STEPS, WARMUP, RUNS = 3, 2, 5
PAUSE = 0.02

Phase = Callable[[], object]


class Slow(Dataset):
    """Dataset whose items take time."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, place: int) -> torch.Tensor:
        time.sleep(PAUSE)
        return torch.full((4,), float(place))


def repeated(times: int, run: Phase) -> Phase:
    """Run a phase several times. Each result is freed at once: freeing many large tensors takes time in Python."""

    def all_runs() -> None:
        for _ in range(times):
            run()

    return all_runs


def phases() -> dict[str, tuple[str, Phase]]:
    """Phases by name: the kind of their time, and the function."""
    square, wide = torch.randn(500, 500), torch.randn(200, 1000)
    images, kernels = torch.randn(4, 16, 64, 64), torch.randn(32, 16, 3, 3)
    heads = torch.randn(2, 8, 256, 64)
    weights = [nn.Parameter(torch.randn(500, 500)) for _ in range(8)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(weights, fused=True)  # Python between unfused operations is time of the host
    loader = iter(DataLoader(Slow(), batch_size=1))
    reduced = torch.ones(1000)
    return {
        "sleep": ("host", partial(time.sleep, PAUSE)),
        "loader": ("data", partial(next, loader)),
        "matmul": ("contraction", repeated(6, lambda: square @ square)),
        "convolution": ("contraction", repeated(4, lambda: functional.conv2d(images, kernels))),
        "contiguous": ("copy", repeated(40, lambda: wide.t().contiguous())),
        "bfloat16": ("copy", repeated(150, lambda: wide.to(torch.bfloat16))),
        "gelu": ("elementwise", repeated(40, lambda: functional.gelu(wide))),
        "layer norm": ("normalization", repeated(60, lambda: functional.layer_norm(wide, (1000,)))),
        "attention": ("attention", repeated(2, lambda: functional.scaled_dot_product_attention(heads, heads, heads))),
        "AdamW": ("optimizer", optimizer.step),
        "all-reduce": ("communication", lambda: distributed.all_reduce(reduced)),
    }


PROGRAMS = (
    ("sleep", "matmul"),
    ("loader", "matmul"),
    ("contiguous", "matmul"),
    ("gelu", "convolution"),
    ("layer norm", "matmul"),
    ("attention", "matmul", "sleep"),
    ("AdamW", "matmul"),
    ("all-reduce", "matmul"),
    ("bfloat16", "gelu", "loader"),
    ("loader", "sleep", "matmul", "contiguous", "gelu", "layer norm", "AdamW", "all-reduce"),
)


def measure(program: tuple[str, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """Run a program; return shares of its time by the stopwatch, and by the profile."""
    known, watch = phases(), dict[str, float]()
    plan = schedule(wait=0, warmup=WARMUP, active=STEPS, repeat=1)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json.gz"
        with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
            for step in range(WARMUP + STEPS):
                for name in program:
                    kind, run = known[name]
                    begin = time.perf_counter()
                    run()
                    if step >= WARMUP:
                        watch[kind] = watch.get(kind, 0.0) + time.perf_counter() - begin
                if step < WARMUP + STEPS - 1:
                    profiler.step()
        profiler.export_chrome_trace(str(path))
        found = reduce_file(path)
    total = sum(watch.values())
    shares = {kind: seconds / total for kind, seconds in watch.items()}
    times = {**found.idle_seconds, **found.class_seconds}
    return shares, {kind: times.get(kind, 0.0) / found.span_seconds for kind in shares}


def _difference(watch: dict[str, float], found: dict[str, float]) -> tuple[float, str]:
    """Return the largest difference in percentage points, and both shares of each kind."""
    worst = max(abs(found[kind] - share) for kind, share in watch.items())
    return 100 * worst, "; ".join([f"{kind} {share:.1%} / {found[kind]:.1%}" for kind, share in watch.items()])


def rank(number: int, store: str) -> None:
    """Run the programs as rank 0; rank 1 comes late to each all-reduce."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    for program in PROGRAMS:
        if number == 1:
            for _ in range(RUNS * (WARMUP + STEPS) * program.count("all-reduce")):
                time.sleep(2 * PAUSE)
                distributed.all_reduce(torch.ones(1000))
            continue
        runs = sorted([_difference(*measure(program)) for _ in range(RUNS)])
        worst, cells = runs[RUNS // 2]
        print(f"| {', '.join(program)} | {cells} | {worst:.1f} | {runs[-1][0]:.1f} |", flush=True)
    distributed.destroy_process_group()


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(
        "| phases of a step | stopwatch / profile | largest difference, points | in five runs |\n|---|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.spawn(rank, (f"{directory}/store",), nprocs=2)


if __name__ == "__main__":
    main()
