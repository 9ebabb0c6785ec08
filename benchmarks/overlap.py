"""What two measured loops that alternate in one thread cost, as the two networks of a GAN, with many objects alive.

    python benchmarks/overlap.py [--iterations 2200] [--objects 100000] [--rounds 3]

Prints milliseconds per iteration and full collections without measuring, with one loop measured, and with both. Ways
take turns; of each the quickest round counts. "again" is the same as "unmeasured": how far two equal ways lie apart.
"""

import argparse
import contextlib
import gc
import io
import tempfile
import time
from contextlib import ExitStack

import torch

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

WAYS = {"unmeasured": 0, "again": 0, "one measured": 1, "both measured": 2}


def network():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(measured, iterations):
    """Seconds per iteration, and how many full collections there were."""
    fulls, networks = [], [network() for _ in range(2)]
    batches = [torch.randn(16, 32) for _ in range(iterations)]

    def count(phase, info):
        if phase == "start" and info["generation"] == 2:
            fulls.append(1)

    gc.callbacks.append(count)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as directory:
        loaders = []
        for place, (model, optimizer) in enumerate(networks):
            loaders.append(iter(batches))
            if place < measured:
                config = PerfConfig(output_dir=f"{directory}/{place}", measure_peak="off")
                perf = stack.enter_context(measure(model=model, optimizer=optimizer, loader=batches, config=config))
                loaders[place] = iter(perf.loader)
        began = time.perf_counter()
        for _ in range(iterations):
            for (model, optimizer), loader in zip(networks, loaders, strict=True):
                model(next(loader)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        seconds = time.perf_counter() - began
    gc.callbacks.remove(count)
    return seconds / iterations, len(fulls)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=6000)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    alive = [[number] for number in range(args.objects)]
    found = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way, measured in WAYS.items():
            gc.collect()
            with contextlib.redirect_stdout(io.StringIO()):
                found[way].append(train(measured, args.iterations))
    least = min(seconds for seconds, _ in found["unmeasured"])
    for way, rounds in found.items():
        seconds, fulls = min(rounds)
        print(f"{way:<14}{seconds * 1e3:8.3f} ms per iteration   {seconds / least:5.2f} x   {fulls} full collections")
    del alive


if __name__ == "__main__":
    main()
