"""Does the cost of a step stay the same when every batch has a new shape? Time and memory over many steps.

    python benchmarks/shapes.py

A plain loop with a tiny model whose work follows no law, so that nothing is ever scaled: 20,000 steps, each with a
batch of a new shape. The mean step of the last thousand is compared with that of a thousand after the first hundred,
which hold the warm-up, and so is the memory that Python has allocated. Each is the quietest of ten parts of a hundred,
in CPU time of the training thread.
"""

import argparse
import gc
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator

import torch
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

WARM_UP, PART, PARTS = 100, 100, 10


class Jumping(nn.Module):
    """Runs its layer more often for some lengths than for others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[1] % 3 + 1):
            x = self.layer(x)
        return x.square().mean()


def batches(steps: int) -> Iterator[torch.Tensor]:
    """One of each shape, about as large, in an order that has no trend."""
    for step in range(steps):
        place = step * 7919 % steps
        yield torch.ones(1 + place % 10, 1 + place // 10, 4)


def run(steps: int, how: str, *, traced: bool) -> tuple[list[float], list[int]]:
    """CPU seconds of each step, and bytes allocated after each part."""
    model = Jumping()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seconds, sizes = [], []
    with tempfile.TemporaryDirectory() as directory:
        config = PerfConfig(output_dir=directory, flops=how, peak_tflops="1", max_journal_mb=1000)
        with measure(model=model, optimizer=optimizer, loader=batches(steps), config=config) as perf:
            last = time.thread_time()
            for step, batch in enumerate(perf.loader):
                model(batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                if traced and step % 1000 == 999:
                    gc.collect()
                    sizes.append(tracemalloc.get_traced_memory()[0])
                now = time.thread_time()
                seconds.append(now - last)
                last = now
    return seconds, sizes


def thousand(seconds: list[float], start: int) -> float:
    """The mean step of the quietest part."""
    parts = [statistics.mean(seconds[start + PART * part : start + PART * (part + 1)]) for part in range(PARTS)]
    return min(parts)


def main() -> None:
    """Print what is measured."""
    parser = argparse.ArgumentParser(description="Steps with a new batch shape in each.")
    parser.add_argument("--steps", type=int, default=20_000)
    steps: int = parser.parse_args().steps
    torch.set_num_threads(1)
    for how in ("off", "count", "estimate"):
        seconds, _ = run(steps, how, traced=False)
        first, last = thousand(seconds, WARM_UP), thousand(seconds, steps - PART * PARTS)
        print(f"flops={how:<9} first {first * 1e6:6.0f} us  last {last * 1e6:6.0f} us  ratio {last / first:.3f}")
    tracemalloc.start()
    _, sizes = run(steps, "count", traced=True)
    print(f"memory: {(sizes[-1] - sizes[0]) / 1e6:+.2f} MB from step 1,000 to step {len(sizes) * 1000:,}")


if __name__ == "__main__":
    main()
