"""Does `profile="auto"` catch a lasting fault on the right rank? Jobs of two ranks, each with one fault.

    OMP_NUM_THREADS=1 python benchmarks/profile_auto.py            # 20 runs, about 7 minutes

A seed draws the kind of the fault, the rank, the step at which the fault begins, and its length. The fault lasts to the
end. The table shows the ranks that were profiled, and if the profiled steps were taken for a stall, a straggler of one
step, or more than 5 % of the time.
"""

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KINDS = ("loader", "forward", "hook in the backward", "hook of the optimizer", "loop")
STEPS, BASE = 420, 0.01
MOST = 0.05
"""Largest share of the time that profiles may take."""


def train(out, kind, slow, first, seconds):
    """Train as one rank of two."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from perf_callbacks import PerfConfig
    from perf_callbacks.loop import measure

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    rank = torch.distributed.get_rank()
    now = [0]

    def pause(of, *_):
        if of == kind and rank == int(slow) and now[0] > int(first):
            time.sleep(float(seconds))

    def batches():
        for _ in range(STEPS):
            pause("loader")
            yield torch.ones(8, 64)

    inner = torch.nn.Linear(64, 64)
    inner.register_forward_hook(lambda *_: pause("forward"))
    inner.weight.register_hook(lambda _: pause("hook in the backward"))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: pause("hook of the optimizer"))
    config = PerfConfig(output_dir=out, profile="auto", window=10, journal=True)
    with measure(model=model, optimizer=optimizer, loader=batches(), config=config) as perf:
        for step, batch in enumerate(perf.loader, 1):
            now[0] = step
            time.sleep(BASE)
            pause("loop")
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.distributed.destroy_process_group()


def job(*words):
    """Run both ranks to their end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--train", *map(str, words)],
            env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    if any([rank.wait(300) for rank in ranks]):
        raise SystemExit("a rank failed")


def records(out, kind):
    """Return the records of a kind in both journals, as pairs with the rank."""
    from perf_callbacks.journal import read

    folder = Path(out) / "perf_callbacks"
    paths = [(rank, folder / f"rank{rank}.jsonl") for rank in range(2)]
    return [(rank, entry.record) for rank, path in paths for entry in read(path) if isinstance(entry.record, kind)]


def run(seed):
    """Run one job. Return a line of the table, and if the right rank was profiled, and nothing was said wrongly."""
    from perf_callbacks.journal import Profile, Stall, Steps, Straggler, Summary

    draw = random.Random(seed)
    kind, slow = draw.choice(KINDS), draw.randrange(2)
    first, seconds = draw.randrange(60, 140), draw.uniform(0.015, 0.04)
    with tempfile.TemporaryDirectory() as out:
        job(out, kind, slow, first, seconds)
        profiles = records(out, Profile)
        ranks = sorted({rank for rank, _ in profiles})
        profiled = {one.first_step + more for _, one in profiles for more in range(one.steps + 1)}
        mistaken = [one for _, one in records(out, Straggler) if one.steps == 1 and one.step in profiled]
        steps = [one for rank, one in records(out, Steps) if rank == slow]
        taken = [
            taken
            for block in steps
            for number, taken in zip(block.step, block.step_time, strict=True)
            if number in profiled and taken is not None
        ]
        whole = sum(records(out, Summary)[0][1].wall_seconds.values())
        share = (sum(taken) - len(taken) * (BASE + seconds)) / whole
        wrong = len(mistaken) + len(records(out, Stall))
    right = ranks == [slow]
    steps = ", ".join([str(one.first_step) for _, one in profiles]) or "—"
    caught = ", ".join(map(str, ranks)) or "none"
    line = (
        f"| {seed} | {kind} | {slow} | {first} | {seconds * 1e3:.0f} ms | {caught} | {steps} | {share:.1%} | {wrong} |"
    )
    return line, right, not wrong and share <= MOST and len(profiles) <= 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train", nargs=5)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.train:
        train(*arguments.train)
        return
    print(
        "| seed | fault in | rank | from step | longer by | profiled | at step | time | mistaken |\n" + 9 * "|---" + "|"
    )
    found = []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        line, *ok = run(seed)
        found.append(ok)
        print(line, flush=True)
    print(f"right rank: {sum([right for right, _ in found])} of {len(found)}")
    print(f"nothing mistaken, within the budget: {sum([fine for _, fine in found])} of {len(found)}")


if __name__ == "__main__":
    main()
