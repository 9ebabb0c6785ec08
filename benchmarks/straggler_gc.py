"""What does collecting garbage at different steps cost a job, and what do the events say of it?

    OMP_NUM_THREADS=1 python benchmarks/straggler_gc.py --ranks 4 --rounds 3

Ranks hold many objects and make some in each step, of which they keep the last ones, as a buffer for shuffling does.
Python then runs full collections, on each rank at other steps. With gc="sync" all ranks collect at the same step.
The rounds alternate; each line is one run.
"""

import argparse
import json
import os
import random
import socket
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perf_callbacks import PerfConfig
from perf_callbacks.journal import Gc, Straggler, read
from perf_callbacks.loop import measure

OBJECTS, STEPS, SLEEP = 500_000, 400, 0.02


def train(rank, ranks, port, job):
    policy, directory, seed = job
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    chance = random.Random(100 * seed + rank)
    held = [[] for _ in range(OBJECTS)]
    recent = deque(maxlen=60)
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    config = PerfConfig(
        output_dir=directory, gc=policy, gc_interval=100, flops="off", measure_peak="off", affinity="off"
    )
    with measure(model=model, optimizer=optimizer, loader=range(STEPS), config=config) as perf:
        for _ in perf.loader:
            recent.append([[] for _ in range(chance.randrange(4000, 12000))])
            time.sleep(SLEEP)
            model(torch.ones(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    del held
    summary = perf.summary
    if rank == 0 and summary is not None:
        told = {
            "seconds": summary.included_seconds,
            "lost": dict(summary.stragglers.seconds_by_cause),
            "slowdown": summary.stragglers.slowdown,
        }
        Path(directory, "told").write_text(json.dumps(told), encoding="utf-8")
    dist.destroy_process_group()


def run(policy, ranks, seed):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(train, (ranks, port, (policy, directory, seed)), ranks)
        journals = Path(directory, "perf_callbacks")
        records = [[entry.record for entry in read(journals / f"rank{rank}.jsonl")] for rank in range(ranks)]
        told = json.loads(Path(directory, "told").read_text(encoding="utf-8"))
    events = [one for one in records[0] if isinstance(one, Straggler) and one.cause == "gc"]
    pauses = [(rank, one) for rank, found in enumerate(records) for one in found if isinstance(one, Gc)]
    return told, events, pauses


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    seconds = {"observe": [], "sync": []}
    lost, left = [], []
    print("| gc | seconds of steps | events named gc | seconds lost to gc | to other causes | slowdown |")
    print("|---|---|---|---|---|---|")
    for seed in range(given.rounds):
        for policy, found in seconds.items():
            told, events, pauses = run(policy, given.ranks, seed)
            found.append(told["seconds"])
            if policy == "observe":
                lost.append(told["lost"].get("gc", 0.0))
            rest = sum([amount for cause, amount in told["lost"].items() if cause != "gc"])
            print(
                f"| {policy} | {told['seconds']:.1f} | {len(events)} | {told['lost'].get('gc', 0.0):.2f} | {rest:.2f} "
                f"| {told['slowdown']:.2f} |",
                flush=True,
            )
            if policy == "sync":
                left += [(event, [one for one in pauses if abs(one[1].step - event.step) <= 1]) for event in events]
    for event, pauses in left:
        print(f"left with sync: step {event.step}, rank {event.rank}, {event.seconds_lost:.2f} s; collections there:")
        for rank, one in pauses:
            print(f"  rank {rank}, step {one.step}, generation {one.generation}, {one.seconds:.3f} s, by {one.ours}")
    saved = [slow - fast for slow, fast in zip(seconds["observe"], seconds["sync"], strict=True)]
    print(f"\nlost by the events: {statistics.median(lost):.2f} s; saved by gc=sync: {statistics.median(saved):.2f} s")


if __name__ == "__main__":
    main()
