"""Figures behind rules of advice: what following a line gains, what a worker needs, what counting costs.

    OMP_NUM_THREADS=1 python benchmarks/advice_figures.py prefetch   # bursts: prefetch_factor, or more workers?
    OMP_NUM_THREADS=1 python benchmarks/advice_figures.py worker     # memory of a forked worker that is its own
    OMP_NUM_THREADS=1 python benchmarks/advice_figures.py llama      # checkpointing and eager attention: promise, gain
    OMP_NUM_THREADS=1 python benchmarks/advice_figures.py counting   # part of 30 s that FLOP counts of 300 layers take
    OMP_NUM_THREADS=2 python benchmarks/advice_figures.py threads    # two threads beside a busy program

Each runs some seconds to three minutes on a CPU, and prints a table.
"""

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

LLAMAS = (
    (64, 128, 8), (64, 256, 4), (128, 64, 4), (128, 256, 4), (128, 256, 16), (192, 128, 8), (256, 128, 8), (384, 64, 4),
    (384, 256, 2), (512, 256, 2),
)  # fmt: skip
"""Width with four heads, length and batch."""

BURN = "import time\nend = time.monotonic() + 40\nwhile time.monotonic() < end:\n    pass"


class Batches(Dataset):
    """Batches of which some take long to load."""

    def __init__(self, number, seconds, long_seconds=0.0, every=20):
        self.number, self.seconds, self.long_seconds, self.every = number, seconds, long_seconds, every

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        long = self.long_seconds and index % self.every == self.every - 1
        time.sleep(self.long_seconds if long else self.seconds)
        return torch.ones(4, 8)


def train(model, batches, loss_of, *, steps=None, seconds=None, **options):
    """Train a plain loop, and return its summary."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config = PerfConfig(output_dir=folder, measure_peak="off")
        began = time.perf_counter()
        with measure(model=model, optimizer=optimizer, config=config, **options) as perf:
            for step, batch in enumerate(perf.loader if "loader" in options else batches):
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                if step + 1 == steps or (seconds and time.perf_counter() - began > seconds):
                    break
        return perf.summary


def prefetch():
    def waits(model, batch):
        time.sleep(0.022)
        return model(batch).square().mean()

    print("| batches | num_workers | prefetch_factor | step, ms | advice | promised |\n" + 6 * "|---" + "|")
    for name, rows, plans in (
        ("4 ms, each 20th 250 ms", Batches(600, 0.004, 0.25), ((2, 2), (2, None), (4, 2))),
        ("100 ms", Batches(300, 0.1), ((2, 2), (2, 8))),
    ):
        advised = 2
        for workers, given in plans:
            ahead = given or advised
            loader = DataLoader(rows, batch_size=None, num_workers=workers, prefetch_factor=ahead)
            summary = train(nn.Linear(8, 8), None, waits, loader=loader)
            found = next((one for one in summary.findings if one.cause == "data"), None)
            line = "" if found is None else found.remedy
            if "prefetch_factor=" in line:
                advised = int(line.partition("prefetch_factor=")[2].rstrip(")"))
            share = "" if found is None else f"{found.low or 0:.0%} to {found.share:.0%}"
            print(f"| {name} | {workers} | {ahead} | {1000 * summary.step_time:.1f} | {line} | {share} |", flush=True)


class Lists(Dataset):
    """A data set of many small lists, whose counts of references a worker changes."""

    def __init__(self, number):
        self.lists = [[row] for row in range(number)]

    def __len__(self):
        return len(self.lists)

    def __getitem__(self, index):
        return torch.tensor(self.lists[index])


def worker():
    import transformers

    print(f"torch {torch.__version__}, transformers {transformers.__version__}\n| lists | private MB of a worker |")
    for number in (1000, 2_000_000):
        iterator = iter(DataLoader(Lists(number), batch_size=4, num_workers=1, shuffle=True))
        for _ in range(200):
            next(iterator)
        found = Path(f"/proc/{iterator._workers[0].pid}/smaps_rollup").read_text()  # noqa: SLF001 its only handle
        private = sum(int(line.split()[1]) for line in found.splitlines() if line.startswith("Private_"))
        print(f"| {number:,} | {private / 1000:.0f} |", flush=True)
        del iterator


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    def loss_of(model, ids):
        return model(input_ids=ids, labels=ids).loss

    def run(width, length, batch, *, attention="eager", checkpointing=False):
        torch.manual_seed(0)
        sizes = {"vocab_size": 512, "hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 3}
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, attn_implementation=attention)).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        ids = torch.randint(0, 512, (batch, length))
        return train(model, iter(lambda: ids, None), loss_of, seconds=12)

    print("| width | length | batch | rule | promised | gained | within |\n" + 7 * "|---" + "|")
    for sizes in LLAMAS:
        width, length, batch = sizes
        plain, fused = run(*sizes), run(*sizes, attention="sdpa")
        for rule, slow, quick in (
            ("attention", plain, fused), ("recompute", run(*sizes, checkpointing=True), plain),
        ):  # fmt: skip
            found = next((one for one in slow.findings if one.cause == rule), None)
            gained = 1 - quick.step_time / slow.step_time
            if found is None:
                print(f"| {width} | {length} | {batch} | {rule} | nothing | {gained:.1%} | |", flush=True)
                continue
            low = found.low or 0.0
            within = "yes" if low <= gained <= found.share else "no"
            promised = f"{low:.1%} to {found.share:.1%}"
            print(f"| {width} | {length} | {batch} | {rule} | {promised} | {gained:.1%} | {within} |", flush=True)


def counting():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(300)])
    batches = iter(lambda: torch.ones(32, 64), None)
    summary = train(model, batches, lambda net, x: net(x).square().mean(), seconds=30)
    wall = summary.wall_seconds
    print(f"step {1000 * summary.step_time:.0f} ms, {summary.steps} steps; FLOP counts {wall['flop_counting']:.2f} s, ")
    print(f"{wall['flop_counting'] / sum(wall.values()):.1%} of the time")


def threads():
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(20)])
    subprocess.run(["sh", "-c", '"$0" -c "$1" &', sys.executable, BURN], check=True)  # no child: its CPU isn't ours
    for number in (2, 1):
        torch.set_num_threads(number)
        batches = iter(lambda: torch.ones(256, 128), None)
        summary = train(model, batches, lambda net, x: net(x).square().mean(), seconds=12)
        print(f"{number} threads, {1000 * summary.step_time:.1f} ms per step:")
        for one in summary.findings:
            print(f"  {one.cause}: {one.evidence}; try {one.remedy}")


if __name__ == "__main__":
    {one.__name__: one for one in (prefetch, worker, llama, counting, threads)}[sys.argv[1]]()
