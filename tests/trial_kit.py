"""Programs that tests try, and what a trial must leave behind: nothing."""

from pathlib import Path

AT_ONCE = """
from perf_callbacks.kernel.records import fit_records
from perf_callbacks.trials import process
fit_records.ENOUGH_SECONDS = process.SKIPPED_SECONDS = 0.0
"""
"""The start of a program whose steps count from the eleventh on, and that has a verdict after a few steps."""

LOOP = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 10**5
    def __getitem__(self, index):
        return torch.full((8,), float(index % 7))

def train(optimizer_of=torch.optim.AdamW, steps=10**5, each=lambda step: None, **loading):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = optimizer_of(net.parameters())
    step = 0
    for x in DataLoader(Rows(), batch_size=4, **loading):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        each(step)
        step += 1
        if step == steps:
            break
"""
"""A plain loop."""


def files(directory):
    """All that is in a directory; files with contents and times. Python itself makes directories of caches."""
    return {
        str(path): path.is_file() and (path.stat().st_mtime_ns, path.read_bytes())
        for path in Path(directory).rglob("*")
        if "__pycache__" not in str(path)
    }


def processes(directory):
    """Processes that trials in this temporary directory have started, with the numbers of their trials. Linux only."""
    mark = f"_PERF_CALLBACKS_TRIAL={directory}".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        for one in variables:
            if one.startswith(mark):
                found[int(entry.parent.name)] = Path(one.decode()).stem
    return found


def by_remedy(result):
    return {one["remedy"] or one["setting"]: one for one in result["settings"]}
