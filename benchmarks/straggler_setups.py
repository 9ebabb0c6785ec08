"""Is a slow rank named in the set-ups that people have? Real ranks on a CPU, with faults put into them.

    OMP_NUM_THREADS=1 python benchmarks/straggler_setups.py --healthy                 # each set-up once
    OMP_NUM_THREADS=1 python benchmarks/straggler_setups.py --setups hf fsdp2 --seeds 5 --ranks 4 --details

In many set-ups ranks wait for each other at other places than DDP's last gradient: they broadcast buffers, gather
losses, or gather parameters. Each run holds 14 sleeps and the like in steps of some 25 ms: in the data, the forward,
the loss, the optimizer and a callback, a collection of garbage, and a stolen CPU, each on two ranks (with two ranks:
once on each). A fault is named right if an event has its rank, its step within one step (LocalSGD: within the eight
steps to the next average), and its cause. If the scheduler says that a rank lacked a CPU, an event that says so is
right: the machine is shared. A stolen CPU counts as a fault only if the scheduler says that it was stolen.
"""

import argparse
import random
import shutil
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from straggler_setup_rank import SETUPS, Forked, preload
from stragglers import NEAR, RankError, job

from perf_callbacks.journal import Steps, Straggler, read

FAULTS = ("data", "callback", "forward", "gc", "loss", "optimizer", "steal")
SITES = ("data", "forward", "loss", "optimizer", "callback")
"""Places in a step. Collections and stolen CPUs happen in any of them."""
CAUSES = {"data": "data", "gc": "gc", "steal": "steal"}
"""Causes by which faults are right to be named; host for all others."""
SHARDED = frozenset({"fsdp1", "fsdp2", "tensor_parallel"})
"""Set-ups in which a stolen CPU may be named as work on the host: the thread's time is not read at each wait."""
FOUR_RANKS = ("plain", "hf", "fsdp2")
"""Set-ups that also run with four ranks."""
SLEEP, WINDOW, PLACES = 0.02, 50, 17
FIRST, APART, DRIFT = 8, 11, 4
"""The step of the first place of a fault, the steps from there to the next place, and the steps within a place."""
LOCAL_STEPS, FIRST_LOCAL, APART_LOCAL = 8, 18, 24
"""With LocalSGD, ranks meet in each eighth step only, and are compared from the first time on. Faults fall into any of
the eight steps: the seconds of a step in which ranks meet belong to two cycles."""


def plan_of(setup, seed, world_size, *, healthy=False):
    """The faults of a run, the same for all its ranks: step, rank, fault, site, seconds."""
    chance = random.Random(f"{setup} {seed} {world_size}")
    first, apart, drift = (FIRST_LOCAL, APART_LOCAL, LOCAL_STEPS) if setup == "local_sgd" else (FIRST, APART, DRIFT)
    faults = [(fault, rank) for fault in FAULTS for rank in chance.sample(range(world_size), 2)]
    if setup == "accelerate_dispatch":  # rank 0 reads the data of all ranks
        faults = [(fault, 0 if fault == "data" else rank) for fault, rank in faults]
        faults.remove(("data", 0))
    places = sorted(chance.sample(range(PLACES), len(faults)))
    chance.shuffle(faults)
    drawn = []
    for place, (fault, rank) in zip(places, faults, strict=True):
        step = first + place * apart + chance.randrange(drift)
        fetches = rank == 0 or setup != "accelerate_dispatch"
        site = chance.choice(SITES if fetches else SITES[1:]) if fault in {"gc", "steal"} else fault
        drawn.append((step, rank, fault, site, 0.1 + 0.2 * chance.random()))
    last = first + PLACES * apart
    return {
        "setup": setup, "seed": seed, "world_size": world_size, "faults": [] if healthy else drawn,
        "steps": WINDOW * -(-last // WINDOW), "window": WINDOW, "sleep": SLEEP / 2 if setup == "no_sync" else SLEEP,
    }  # fmt: skip


class Score(Counter):
    """Counts of one run or more: faults, right, wrong_rank, stray, busy, injected and told seconds.

    stray: events about a rank without a fault. wrong_rank: the same, beside a fault of another rank. busy: the rank had
    no fault, but lacked a CPU by chance, and another cause is told.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.failures = Counter()
        self.lines = []

    def add(self, other):
        self.update(other)
        self.failures.update(other.failures)


def score(plan, told, directory):
    """Compare the events with the faults."""
    events = [entry.record for entry in read(directory) if isinstance(entry.record, Straggler)]
    truth = [(rank, *fault) for rank, one in enumerate(told) for fault in one["truth"]]
    found, explained = Score(), set()
    found["steps"], found["compared"] = plan["steps"], told[0]["compared_steps"]
    for rank, step, fault, site, seconds, stolen in sorted(truth, key=lambda one: one[1]):
        steps = steps_of(plan, step)
        mine = [one for one in events if one.rank == rank and _about(one, steps)]
        explained |= {id(one) for one in mine}
        if fault == "steal" and stolen < seconds / 2:
            found["not_stolen"] += 1
            continue
        if fault != "steal":  # by chance the rank may lack a CPU as well
            mine = [one for one in mine if not (one.cause == "steal" and lacked_cpu(plan, one, told))]
        causes = Counter()
        for one in mine:
            causes[one.cause] += one.seconds_lost
        right = bool(causes) and _right(plan, fault, causes.most_common(1)[0][0])
        found["faults"] += 1
        found["right"] += right
        found["injected"] += seconds
        found["told"] += sum(causes.values())
        if not right:
            name = fault if fault == site else f"{fault} in {site}"
            found.failures[f"{name}: {' and '.join(sorted(causes)) or 'missed'}"] += 1
            found.lines.append(f"step {step}, rank {rank}, {name} {seconds:.2f} s: told {_short(mine) or 'nothing'}")
    for event in events:
        busy = lacked_cpu(plan, event, told)
        if id(event) in explained or (busy and _right(plan, "steal", event.cause)):
            continue
        beside = any(_about(event, steps_of(plan, step)) for _, step, *_ in truth)
        kind = "busy" if busy else "wrong_rank" if beside else "stray"
        found[kind] += 1
        found.lines.append(f"{kind}: {_short([event])}")
    found.lines += [f"never happened: {left}" for one in told for left in one["left"]]
    if found["compared"] < found["steps"]:
        found.lines.append(f"{found['compared']} of {found['steps']} steps were compared")
    return found


def steps_of(plan, step):
    """The steps by which an event about a fault in a step may be numbered."""
    return range(step - NEAR, step + NEAR + (LOCAL_STEPS if plan["setup"] == "local_sgd" else 0) + 1)


def lacked_cpu(plan, event, told):
    """The scheduler says that the rank had no CPU for at least half of what the event says."""
    delays, cycle = told[event.rank]["delays"], LOCAL_STEPS if plan["setup"] == "local_sgd" else 1
    ends = range(max(cycle, event.step - NEAR), min(len(delays), event.step + NEAR + 1))
    return any(delays[end] - delays[end - cycle] >= event.seconds_lost / 2 for end in ends)


def _right(plan, fault, cause):
    return cause == CAUSES.get(fault, "host") or (fault == "steal" and cause == "host" and plan["setup"] in SHARDED)


def _about(event, steps):
    return event.step in steps if event.steps == 1 else event.step - event.steps < steps[0] <= event.step


def _short(events):
    return ", ".join(
        [
            f"{one.cause} of rank {one.rank} in step {one.step}" + f" ({one.steps} steps)" * (one.steps > 1)
            + f" {one.seconds_lost:.2f} s" for one in events
        ]
    )  # fmt: skip


def stages(plan, directory):
    """Median milliseconds of each stage, by rank."""
    lines = []
    for rank in range(plan["world_size"]):
        columns = {}
        for entry in read(directory / "perf_callbacks" / f"rank{rank}.jsonl"):
            if isinstance(entry.record, Steps):
                for name in ("step", "data", "forward", "backward", "optimizer", "communication", "other"):
                    columns.setdefault(name, []).extend(getattr(entry.record, f"{name}_time", None) or [])
        middles = {name: sorted(known)[len(known) // 2] for name, column in columns.items()
                   if (known := [one for one in column if one is not None])}  # fmt: skip
        lines.append(f"rank {rank}: " + ", ".join([f"{name} {1000 * one:.1f}" for name, one in middles.items()]))
    return lines


def run(plan, given):
    """Run a plan, and return its score."""
    folder = f"{plan['setup']}-{plan['world_size']}-{plan['seed']}" + "-healthy" * (not plan["faults"])
    with nullcontext(given.keep / folder) if given.keep else tempfile.TemporaryDirectory() as directory:
        shutil.rmtree(directory, ignore_errors=True)  # journals are appended to
        Path(directory).mkdir(parents=True)
        told = job(plan, Path(directory), Forked)
        found = score(plan, told, Path(directory))
        if given.details:
            print(f"\n{folder}")
            print(*[f"  {line}" for line in [*found.lines, *stages(plan, Path(directory))]], sep="\n", flush=True)
    return found


def row(name, faulty, healthy, given):
    failures = [f"{what}{f' ({count})' if count > 1 else ''}" for what, count in sorted(faulty.failures.items())]
    cells = [
        name, f"{faulty['right']} of {faulty['faults']}", faulty["wrong_rank"], faulty["stray"], faulty["busy"],
        f"{faulty['told']:.1f} of {faulty['injected']:.1f}",
    ]  # fmt: skip
    if given.healthy:
        cells.append(f"{healthy['stray']} + {healthy['busy']}")
    print("| " + " | ".join(map(str, [*cells, "; ".join(failures)])) + " |", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--setups", nargs="*", choices=SETUPS, default=[*SETUPS], metavar="NAME",
                           help=f"of {', '.join(SETUPS)}")  # fmt: skip
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--first", type=int, default=0, help="the first seed")
    arguments.add_argument("--ranks", type=int, help="2, and 4 in some of the set-ups, unless given")
    arguments.add_argument("--healthy", action="store_true", help="also run without faults")
    arguments.add_argument("--details", action="store_true", help="print wrong events and stages of each run")
    arguments.add_argument("--keep", type=Path, help="a directory that keeps the journals")
    given = arguments.parse_args()
    cases = [(setup, given.ranks or 2) for setup in given.setups]
    cases += [(setup, 4) for setup in given.setups if setup in FOUR_RANKS and given.ranks is None]
    preload(given.setups)
    columns = ["set-up", "named right", "wrong rank", "no fault", "of a busy CPU, as host", "seconds told"]
    columns += ["in healthy runs"] * given.healthy + ["not named right"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)
    totals, healthy_totals, broken = Score(), Score(), []
    for setup, ranks in cases:
        name = setup if ranks == 2 else f"{setup}, {ranks} ranks"
        faulty, healthy = Score(), Score()
        try:
            for seed in range(given.first, given.first + given.seeds):
                faulty.add(run(plan_of(setup, seed, ranks), given))
                if given.healthy:
                    healthy.add(run(plan_of(setup, seed, ranks, healthy=True), given))
        except RankError as error:
            broken.append(f"{name}: {error}")
        row(name, faulty, healthy, given)
        totals.add(faulty)
        healthy_totals.add(healthy)
    row("together", totals, healthy_totals, given)
    print(f"\nCPUs that the scheduler left to the rank, so no fault: {totals['not_stolen']}", *broken, sep="\n")


if __name__ == "__main__":
    main()
