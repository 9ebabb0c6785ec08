"""Does a training take longer while `perf-callbacks watch` looks at it? One training, watched in turns.

    OMP_NUM_THREADS=1 python benchmarks/watched.py --watchers 1 --seconds 90

The watchers run all the time, each in a terminal of its own, and are stopped and continued by signals in turns of two
seconds: watched, alone, and alone again as the control. A turn's figure is the 10th percentile of its steps. Printed
are the medians of the differences to the turn before (for the control: after), with 95 % bootstrap intervals.
"""

import argparse
import itertools
import os
import pty
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch

from perf_callbacks import PerfConfig
from perf_callbacks.launch.cost.turns import interval
from perf_callbacks.loop import measure

TURN_SECONDS = 2.0
KINDS = ("alone", "watched", "alone again")


def watcher(directory):
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "perf_callbacks", "watch", directory]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    threading.Thread(target=drain, args=(master,), daemon=True).start()
    return process


def drain(master):
    while True:
        try:
            os.read(master, 65536)
        except OSError:
            return


def told(values):
    found = interval(values)
    return f"{found.median * 1e6:.1f} [{found.low * 1e6:.1f}, {found.high * 1e6:.1f}] us"


def train(directory, seconds, watchers):
    """Train, and return the kind and the figure of each turn."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = itertools.repeat(torch.ones(64, 256))
    turns, processes = [], []
    kinds, kind, times, end = itertools.cycle(KINDS), "", [], 0.0
    with measure(model=model, optimizer=optimizer, loader=batches, config=PerfConfig(output_dir=directory)) as perf:
        began = time.monotonic()
        for batch in perf.loader:
            start = time.perf_counter()
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - start)
            now = time.monotonic()
            if not processes and now > began + 2:
                processes = [watcher(directory) for _ in range(watchers)]
                end = now + 6  # until they draw
            if processes and now > end:
                if kind:
                    turns.append((kind, sorted(times)[len(times) // 10]))
                kind, times, end = next(kinds), [], now + TURN_SECONDS
                for process in processes:
                    process.send_signal(signal.SIGCONT if kind == "watched" else signal.SIGSTOP)
            if now > began + seconds:
                break
    assert all(process.poll() is None for process in processes), "a watcher has ended"
    for process in processes:
        process.kill()
    return turns


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--watchers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=90)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        turns = train(directory, arguments.seconds, arguments.watchers)
    quiet = statistics.median([seconds for kind, seconds in turns if kind == "alone"])
    print(f"a step alone takes {quiet * 1e6:.0f} us; {arguments.watchers} watching, {len(turns)} turns")
    for name in KINDS[1:]:
        pairs = [(before, after) for (_, before), (kind, after) in itertools.pairwise(turns) if kind == name]
        if name == "alone again":  # the turn before is watched: compare with the turn alone after
            pairs = [(after, one) for (kind, one), (_, after) in itertools.pairwise(turns) if kind == name]
        print(f"  {name:<12} {told([after - before for before, after in pairs])}")


if __name__ == "__main__":
    main()
