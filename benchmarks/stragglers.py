"""Are stragglers found: the rank, the step, the cause and the loss? Real ranks on a CPU, with faults put into them.

    OMP_NUM_THREADS=1 python benchmarks/stragglers.py --seeds 20          # 2 and 4 ranks, all integrations in turn

Each run holds every fault: collections, data stalls, slow code and stolen CPUs, each twice, and one rank that is slow
for long. The steps mostly sleep, as if they waited for a device, so that 4 ranks fit onto 2 CPUs. If the scheduler
itself says that a rank had no CPU, an event that says so is right: the machine is shared. For the same reason faults
that took less than half a median step of their run are counted apart; a stolen CPU, if the rank lacked it for less.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path

from perf_callbacks.journal import Straggler, read

DOORS, RANKS = ("lightning", "transformers", "accelerate"), (2, 4)
CAUSES = ("gc", "data", "host", "steal")
STEPS, STEP, WINDOW = 400, 0.03, 50
SLOW = (0.6, 230, 380)
"""A rank is slow for long: by this part of the sleep, from one step to another."""
NEAR, BURST = 1, 20
"""Steps by which an event may be off, and steps in which a CPU is stolen."""
MOST_SECONDS = 240
"""A job that takes longer has failed."""


def plan_of(seed, door, world_size):
    """The faults of a run, the same for all its ranks."""
    chance = random.Random(seed)
    places = sorted(chance.sample(range(3, 27), 2 * len(CAUSES)))
    causes = [*CAUSES, *CAUSES]
    chance.shuffle(causes)
    faults = [
        (8 * place, chance.randrange(world_size), cause, 0.5 if cause == "steal" else 0.1 + 0.2 * chance.random())
        for place, cause in zip(places, causes, strict=True)
    ]
    share, first, last = SLOW
    return {
        "door": door, "world_size": world_size, "seed": seed, "faults": faults, "steps": STEPS,
        "slow": (chance.randrange(world_size), first, last, share), "step": STEP,
    }  # fmt: skip


class RankError(Exception):
    """A rank of a job failed."""


def started(own, environ, errors):
    """Start a rank as a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("straggler_rank.py")), json.dumps(own)]
    with errors.open("w") as file:
        return subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=file)


def job(plan, directory):
    """Run all ranks, and return what they told."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(plan["world_size"]):
        environ = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "WORLD_SIZE": str(plan["world_size"]), "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true",
        }  # fmt: skip
        own = {**plan, "rank": rank, "directory": str(directory)}
        ranks.append(started(own, environ, directory / f"rank{rank}.err"))
    deadline, codes = time.monotonic() + MOST_SECONDS, [None]
    try:
        while None in codes:
            time.sleep(0.1)
            codes = [rank.poll() for rank in ranks]
            if any(codes):
                failed = codes.index(next(filter(None, codes)))
                raise RankError(f"rank {failed}: " + (directory / f"rank{failed}.err").read_text()[-2000:])
            if time.monotonic() > deadline:
                raise RankError(f"ranks {[place for place, code in enumerate(codes) if code is None]} don't end")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads((directory / f"rank{rank}.told").read_text()) for rank in range(plan["world_size"])]


def score(plan, told, directory):
    """Compare what was found with what was done: pairs of cause and cause found, right events, and seconds by cause.

    The seconds are those of the faults that were done, and those of the events about them.
    """
    events = [entry.record for entry in read(directory) if isinstance(entry.record, Straggler)]
    single = [event for event in events if event.steps == 1 and event.step <= plan["steps"]]
    truth = {(step, rank): (cause, seconds) for rank, one in enumerate(told) for step, cause, seconds in one["truth"]}
    pairs, right, seconds_of = Counter(), 0, Counter()
    matched = set()
    usual = statistics.median(told[0]["times"])
    for (step, rank), (cause, seconds) in truth.items():
        near = range(step - NEAR, step + (BURST if cause == "steal" else NEAR) + 1)
        if cause == "steal" and not _starved(near, rank, told, max(STEP, usual / 2)):
            continue
        if cause != "steal" and seconds < usual / 2:
            pairs["small", cause] += 1
            continue
        found = [one for one in single if one.rank == rank and one.step in near]
        best = max(found, key=lambda one: (one.cause == cause, one.seconds_lost), default=None)
        wrong = next((one for one in single if one.step in near and one.rank != rank), None)
        pairs[cause, best.cause if best else ("other rank" if wrong and wrong.cause != "steal" else "missed")] += 1
        matched |= {id(one) for one in found if one.cause == cause}
        if cause != "steal":  # a CPU that is stolen for some steps is a loss in some of them
            seconds_of["done", cause] += seconds
            seconds_of["told", cause] += sum([one.seconds_lost for one in found])
    slow_rank, first, last, _ = plan["slow"]
    seconds_of["done", "slow"] += told[slow_rank]["slept"]
    for event in single:
        slow = event.rank == slow_rank and first <= event.step <= last + 1 and event.cause == "host"
        seconds_of["told", "slow"] += event.seconds_lost if slow and id(event) not in matched else 0.0
        if id(event) in matched or slow or _contended(event, told):
            right += 1
        else:
            pairs["none", event.cause] += 1
    slow_pairs, slow_right, lost = score_slow(plan, [event for event in events if event.steps > 1])
    seconds_of["told", "slow"] += lost
    return pairs + slow_pairs, right + slow_right, seconds_of


def score_slow(plan, events):
    """Compare the events about a rank that was slow for long with what was done: pairs, right events, seconds lost."""
    slow_rank, first, last, _ = plan["slow"]
    pairs, causes, right = Counter(), Counter(), 0
    for event in events:
        if event.rank == slow_rank and first < event.step <= last + WINDOW:
            causes[event.cause] += event.seconds_lost
            right += 1
        elif event.cause == "steal":  # a rank without a CPU is slow, and the scheduler says so
            right += 1
        else:
            pairs["none", f"slow: {event.cause}"] += 1
    pairs["slow", max(causes, key=causes.__getitem__) if causes else "missed"] += 1
    return pairs, right, sum(causes.values())


def _starved(steps, rank, told, least):
    """The scheduler says that the rank, and no other one, had no CPU for at least these seconds of one of the steps."""
    lost = [
        [max(0.0, delays[step] - delays[step - 1]) for step in steps if step < len(delays)]
        for delays in [one["delays"] for one in told]
    ]
    others = [max(column) for column in zip(*lost[:rank], *lost[rank + 1 :], strict=False)]
    return any(mine - other > least for mine, other in zip(lost[rank], others, strict=False))


def _contended(event, told):
    """The scheduler says that the rank had no CPU for at least half of what the event says."""
    delays = told[event.rank]["delays"]
    around = range(max(1, event.step - 1), min(len(delays), event.step + 2))
    return event.cause == "steal" and any(delays[step] - delays[step - 1] >= event.seconds_lost / 2 for step in around)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--ranks", type=int, choices=RANKS)
    arguments.add_argument("--door", choices=DOORS)
    given = arguments.parse_args()
    cases = [*product([given.door] if given.door else DOORS, [given.ranks] if given.ranks else RANKS)]
    pairs, right, seconds = Counter(), 0, Counter()
    for seed in range(given.first, given.first + given.seeds):
        door, world_size = cases[seed % len(cases)]
        plan = plan_of(seed, door, world_size)
        with tempfile.TemporaryDirectory() as folder:
            told = job(plan, Path(folder))
            found, good, by_cause = score(plan, told, Path(folder))
        pairs, right, seconds = pairs + found, right + good, seconds + by_cause
        wrong = {pair: count for pair, count in found.items() if pair[0] != pair[1] and pair != ("slow", "host")}
        pace = 1000 * statistics.median(told[0]["times"])
        print(f"seed {seed}: {door}, {world_size} ranks, {pace:.0f} ms per step", *wrong.items(), flush=True)
    show(pairs, right, seconds)


def show(pairs, right, seconds):
    """Print the confusion matrix, recall and precision."""
    found = [*CAUSES, "other rank", "missed"]
    print("\n| fault | " + " | ".join(found) + " |\n|---" + "|---" * len(found) + "|")
    for cause in (*CAUSES, "slow"):
        print(f"| {cause} | " + " | ".join([str(pairs[cause, one]) for one in found]) + " |")
    faults = {pair: count for pair, count in pairs.items() if pair[0] not in {"none", "small"}}
    false = {pair[1]: count for pair, count in pairs.items() if pair[0] == "none"}
    seen = sum([count for (_, one), count in faults.items() if one not in {"missed", "other rank"}])
    named = sum([count for (cause, one), count in faults.items() if one == {"slow": "host"}.get(cause, cause)])
    whole = sum(faults.values())
    print(f"\nrecall: rank and step {seen / whole:.3f}, cause too {named / whole:.3f} of {whole} faults")
    print(
        f"precision: {right / max(1, right + sum(false.values())):.3f} of {right + sum(false.values())} events", false
    )
    losses = [
        f"{cause} {seconds['told', cause]:.2f} of {seconds['done', cause]:.2f} s"
        for cause in ("gc", "data", "host", "slow")
    ]
    print("lost by the events, of the seconds that the faults took:", ", ".join(losses))
    small = {pair[1]: count for pair, count in pairs.items() if pair[0] == "small"}
    print("left out, because they took less than half a median step of a run on the busy machine:", small)


if __name__ == "__main__":
    main()
