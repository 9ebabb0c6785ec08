"""What is said of a job that hangs, and of one that doesn't.

    python benchmarks/stalls.py hangs
    python benchmarks/stalls.py hangs --runs 1 --cases lock SIGSTOP --doors loop
    python benchmarks/stalls.py healthy

hangs: two ranks on a CPU, of which one hangs; the store is kept by the parent, as by torchrun. A run is right if there
is one message in time, which names the rank, its stage and its line, if the journal has them after SIGKILL, and if
nothing else is said.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from stalled_rank import HANG_AT, PATIENCE

from perf_callbacks.journal import Stall, read

RANK = Path(__file__).with_name("stalled_rank.py")
DOORS = ("loop", "transformers", "lightning", "accelerate")


@dataclass(frozen=True)
class Case:
    """A way to hang."""

    stage: str
    where: str
    """The comment beside the line that is to be named; empty: none is."""
    world_size: int = 2
    patience: float = PATIENCE
    silent: bool = False


CASES = {
    "next(loader)": Case("data", "# hang: loader"),
    "lock": Case("forward", "# hang: lock"),
    "collective": Case("communication", "# hang: collective"),
    "checkpoint": Case("checkpoint", "# hang: checkpoint", patience=10 * PATIENCE),
    "SIGSTOP": Case("forward", "# hang: stopped", silent=True),
    "GIL held": Case("forward", "# hang: GIL", silent=True),
    "single, lock": Case("forward", "# hang: lock", world_size=1),
    "single, next(loader)": Case("data", "# hang: loader", world_size=1),
}


def line_of(comment: str) -> int:
    lines = RANK.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith("  " + comment))


def free_store():
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@contextmanager
def job(door: str, case: str, world_size: int, *, hangs: int | None = None, healthy: bool = False):
    with tempfile.TemporaryDirectory() as name:
        directory, store = Path(name), free_store()
        processes = []
        try:
            for rank in range(world_size):
                plan = {"door": door, "case": case, "directory": name, "hangs": rank == hangs, "healthy": healthy}
                environ = os.environ | {
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "RANK": str(rank),
                    "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size),
                    "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "1", "TORCHELASTIC_RESTART_COUNT": "0",
                    "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                    "ACCELERATE_USE_CPU": "1",
                }  # fmt: skip
                if world_size == 1:
                    for variable in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
                        environ.pop(variable)
                with (directory / f"said{rank}").open("w") as said:
                    command = [sys.executable, str(RANK), json.dumps(plan)]
                    processes.append(subprocess.Popen(command, env=environ, stdout=said, stderr=said))
            yield directory, processes
        finally:
            for process in processes:
                process.kill()
                process.wait()


def messages(directory: Path) -> list[str]:
    lines = [line for said in sorted(directory.glob("said*")) for line in said.read_text().splitlines()]
    return [line for line in lines if "no step for" in line]


def wait_for(condition, processes, seconds: float, *, may_end: bool = False):
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        if not may_end and any(process.poll() is not None for process in processes):
            break
        time.sleep(0.05)
    return found


def hang(name: str, door: str, hung: int, allowed: float) -> tuple[bool, float | None, str]:
    """Right, seconds from the hang to the message, and the message."""
    case = CASES[name]
    with job(door, name, case.world_size, hangs=hung) as (directory, processes):
        began = directory / f"hangs{hung}"
        if not wait_for(lambda: began.exists() and began.read_text(), processes, 180.0):
            return False, None, "it never hung: " + (directory / f"said{hung}").read_text()[-600:]
        start = float(began.read_text())
        if name == "SIGSTOP":
            time.sleep(1.8)
            processes[hung].send_signal(signal.SIGSTOP)
        wait_for(lambda: messages(directory), processes, case.patience + max(30.0, allowed))
        seconds = time.time() - start
        time.sleep(3.0)  # for what is said too much
        said = messages(directory)
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if not said:
            return False, None, "nothing was said"
        who = "The training is" if case.world_size == 1 else f"Rank {hung} is"
        how = f"{who} silent, last heard of in step {HANG_AT} in" if case.silent else f"{who} in"
        stage = "a checkpoint" if name == "checkpoint" else case.stage
        right = f"{how} {stage}: {RANK.name}:{line_of(case.where)} " in said[0]
        stalls = [entry.record for entry in read(directory) if isinstance(entry.record, Stall)]
        line = f"{RANK.name}:{line_of(case.where)} "
        told = [one for one in stalls if (one.rank, one.stage) == (hung, case.stage)]
        journal = bool(told) and (case.silent or any(line in frame for one in told for frame in one.stack))
        text = said[0].partition("perf_callbacks: ")[2]
        if not journal:
            text += f" (journal: {stalls})"
        return right and journal and len(said) == 1 and seconds <= case.patience + allowed, seconds, text


def hangs(options) -> bool:
    print("| case | door | rank | right | said after | message |\n|---|---|---|---|---|---|")
    good = total = 0
    for name in options.cases:
        doors = islice(cycle(options.doors), options.runs)
        for run, door in enumerate(doors):
            hung = (run + 1) % 2 if CASES[name].world_size > 1 else 0
            right, seconds, text = hang(name, door, hung, options.allowed)
            after = "" if seconds is None else f"{seconds:.1f} s"
            print(f"| {name} | {door} | {hung} | {'yes' if right else 'NO'} | {after} | {text} |", flush=True)
            good, total = good + right, total + 1
    print(f"{good} of {total} hangs were told rightly.")
    return good == total


def healthy(options) -> bool:
    """Long runs in which much is slow and nothing hangs."""
    quiet = total = 0
    for run, door in enumerate(islice(cycle(options.doors), options.runs)):
        world_size = 2 if run % 2 == 0 or run >= 8 else 1
        with job(door, "", world_size, healthy=True) as (directory, processes):
            ends = [directory / f"done{rank}" for rank in range(world_size)]
            done = wait_for(lambda ends=ends: all(end.exists() for end in ends), processes, 300.0, may_end=True)
            said = messages(directory)
            stalls = [entry.record for entry in read(directory) if isinstance(entry.record, Stall)]
            right = bool(done) and not said and not stalls
            quiet, total = quiet + right, total + 1
            more = "" if right else f": {said} {stalls} {(directory / 'said0').read_text()[-500:]}"
            print(f"{door}, {world_size} ranks: {'nothing said' if right else 'NO'}{more}", flush=True)
    print(f"Nothing was said in {quiet} of {total} healthy runs.")
    return quiet == total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["hangs", "healthy"])
    parser.add_argument("--runs", type=int, help="of each case, or healthy ones")
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=CASES, metavar="CASE")
    parser.add_argument("--doors", nargs="*", default=[*DOORS], choices=DOORS)
    parser.add_argument("--allowed", type=float, default=10.0, help="seconds beyond the patience in which it is said")
    options = parser.parse_args()
    options.runs = options.runs or (20 if options.part == "healthy" else 5)
    return 0 if globals()[options.part](options) else 1


if __name__ == "__main__":
    sys.exit(main())
