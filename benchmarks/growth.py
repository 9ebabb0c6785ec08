"""What a long run leaves in memory: traced bytes and resident size, every tenth of the way.

A loop of tiny steps through `measure`, with rows taken and the journal written, as in any run.

    python benchmarks/growth.py --steps 100000
"""

import argparse
import contextlib
import gc
import tempfile
import tracemalloc
from pathlib import Path

import torch
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.zeros(2, 4)
    tracemalloc.start()
    lines = []
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(None):
        loader = (batch for _ in range(steps))
        with measure(model=model, optimizer=optimizer, loader=loader, config=PerfConfig(output_dir=directory)) as perf:
            for number, inputs in enumerate(perf.loader):
                if number % (steps // 10) == 0:
                    gc.collect()
                    lines.append((number, tracemalloc.get_traced_memory()[0] / 1e6, resident()))
                model(inputs).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if number % 50 == 49:
                    perf.row()
            gc.collect()
            lines.append((steps, tracemalloc.get_traced_memory()[0] / 1e6, resident()))
    for number, traced, size in lines:
        print(f"{number:>8} steps   traced {traced:6.2f} MB   resident {size:7.1f} MB")


if __name__ == "__main__":
    main()
