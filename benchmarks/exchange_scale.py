"""Cost of the exchange between ranks: CPU, connections, bytes and memory per window.

    python benchmarks/exchange_scale.py                       # 8 to 4,096 ranks
    python benchmarks/exchange_scale.py --sizes 512 --direct  # each rank with a connection of its own

Rank 0 is a process of its own, with a real TCPStore, the side thread of a fit, and windows of 50 steps with six
signals. The other ranks are simulated in this process: each does the rounds of a real rank, with a real connection or
files. One rank in a hundred (at least one) is silent from the start, so that every window goes on to its deadline.
The training thread of rank 0 is idle, and automatic garbage collection is off, as in a fit with `gc="sync"`. The CPU of
rank 0 is that of all other threads of the process: the side thread, and the server of the store. Signals are made ready
for the analysis, which itself is left out.
Figures are medians over the windows. Ranks that leave files come first, and only the first 256 of them look for the
window again until it is there: this concerns no other machine, and this one can't do so for thousands.
"""
# ruff: noqa: SLF001

import argparse
import gc
import heapq
import itertools
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median

import torch.distributed as dist

from perf_callbacks.kernel.engine.windows import GatheredWindow, Part
from perf_callbacks.ranks import leader, node, rounds, store as board
from perf_callbacks.ranks.exchange import Exchange
from perf_callbacks.ranks.node import Node
from perf_callbacks.ranks.rounds import Follower

PER_NODE = 8
LENGTH = 50
SIGNALS = ("compute", "gc", "data", "delay", "host", "step")
ASKS = {"gc_interval": 100, "profile": 10**12}
CPU_BUDGET, SLICE_BUDGET = 0.050, 0.002


def a_part(rank: int, world_size: int, window: int, random: Random) -> Part:
    return Part(
        window=window,
        length=LENGTH,
        rank=rank,
        world_size=world_size,
        data_parallel=world_size,
        steps=LENGTH,
        seconds=10.0,
        role={"kind": 7},
        samples=400,
        tokens=400 * 4096,
        useful_tokens=None,
        model_flops=10**18,
        hardware_flops=10**18,
        asks=ASKS,
        signals={name: array("f", [random.random() for _ in range(LENGTH)]) for name in SIGNALS},
    )


def node_of(rank: int, world_size: int, directory: str, *, direct: bool) -> Node | None:
    first = rank - rank % PER_NODE
    if direct or world_size <= rounds.MANY:
        return None
    return Node(range(first, first + PER_NODE), rank, Path(directory) / f"node{first}")


def memory() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Slices:
    """CPU of a thread between its sleeps: as long as it may have held the GIL."""

    def __init__(self) -> None:
        self.longest, self._began = 0.0, 0.0

    def begin(self) -> None:
        self._began = time.thread_time()

    def end(self) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)

    def sleep(self, seconds: float) -> None:
        self.end()
        time.sleep(seconds)
        self.begin()


class Reader:
    """Reads nothing."""

    def window_gathered(self, window: GatheredWindow) -> None:
        pass


def rank_0(world_size: int, directory: str, *, direct: bool) -> None:
    """Rank 0, told by its input when a window is over."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    gc.disable()
    before, opened, slices, read = memory(), descriptors(), Slices(), []
    leader.sleep = slices.sleep
    exchange = Exchange(
        server, rank=0, world_size=world_size, window=LENGTH, run_id="run", signals=True,
        node=node_of(0, world_size, directory, direct=direct),
    )  # fmt: skip
    step, get, in_thread = exchange._rounds.step, board.StoreNotes.get, [0.0]

    def timed_step(now):
        began = time.thread_time()
        slices.begin()
        pause = step(now)
        slices.end()
        in_thread[0] += time.thread_time() - began
        return pause

    def counted_get(self, keys):
        blobs = get(self, keys)
        read.append(sum(map(len, blobs)))
        return blobs

    exchange._rounds.step, board.StoreNotes.get = timed_step, counted_get
    reader = Reader()
    exchange.set_reader(reader.window_gathered)  # signals are made for it
    exchange.start()
    print(server.port, flush=True)
    figures = []
    for line in sys.stdin:
        window = int(line)
        cpu = time.process_time() - time.thread_time()  # this thread does nothing but measure
        figures.append((cpu, in_thread[0], sum(read), slices.longest, memory(), descriptors()))
        slices.longest = 0.0
        if window >= 0:
            exchange.offer(a_part(0, world_size, window, Random(0)))
    windows = exchange.take()
    result = {
        "missing": [window.missing for window in windows],
        "process": [b[0] - a[0] for a, b in itertools.pairwise(figures)],
        "thread": [b[1] - a[1] for a, b in itertools.pairwise(figures)],
        "read": [b[2] - a[2] for a, b in itertools.pairwise(figures)],
        "slice": [one[3] for one in figures[1:]],
        "memory": [one[4] - before for one in figures],
        "descriptors": [one[5] - opened for one in figures],
        "failure": exchange._rounds.failure,
    }
    print(json.dumps(result), flush=True)
    exchange.close()
    exchange._talk.wait(20)


class Followers:
    """All ranks but rank 0 and the silent ones, simulated in this process."""

    def __init__(self, store, world_size: int, silent: set[int], directory: str, *, direct: bool) -> None:
        before, opened = memory(), descriptors()
        self.ranks = {
            rank: Follower(
                store, rank=rank, world_size=world_size, node=node_of(rank, world_size, directory, direct=direct)
            )
            for rank in range(1, world_size)
            if rank not in silent
        }
        self.columns = a_part(1, world_size, 0, Random(0))
        self.cpu = {False: 0.0, True: 0.0}  # of ranks that talk for a machine, and of others
        self._due = [(0.0, rank) for rank in self.ranks]
        self.until(time.monotonic() + 15.0)
        self.talking = [rank for rank, one in self.ranks.items() if isinstance(one._board, board.StoreNotes)]
        self.others = [rank for rank in self.ranks if rank not in {*self.talking}]
        self.relays = sum(one._relay is not None for one in self.ranks.values())
        self.memory, self.descriptors = memory() - before, descriptors() - opened

    def until(self, deadline: float) -> None:
        """Do the rounds that are due."""
        while self._due and self._due[0][0] < deadline:
            at, rank = heapq.heappop(self._due)
            time.sleep(max(0.0, at - time.monotonic()))
            pause = self._step(rank)
            if pause is not None and (rank < 256 or isinstance(self.ranks[rank]._board, board.StoreNotes)):
                heapq.heappush(self._due, (time.monotonic() + pause, rank))
        time.sleep(max(0.0, deadline - time.monotonic()))

    def _step(self, rank: int) -> float | None:
        began = time.thread_time()
        pause = self.ranks[rank].step(time.monotonic())
        self.cpu[self.ranks[rank]._relay is not None] += time.thread_time() - began
        return pause

    def window(self, window: int, begin: Callable[[], None], seconds: float) -> None:
        """Go through a window. Ranks that leave files are the first, so that this machine keeps up."""
        for rank, one in self.ranks.items():
            one.offers.append(replace(self.columns, rank=rank, window=window))
        self._due = [
            (time.monotonic() + pause, rank) for rank in self.others if (pause := self._step(rank)) and rank < 256
        ]
        begin()
        now = time.monotonic()
        self._due += [(now + number % 97 / 970, rank) for number, rank in enumerate(self.talking)]
        heapq.heapify(self._due)
        self.until(now + seconds)


def wait_for(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds, but no longer than that."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def simulate(world_size: int, windows: int, seconds: float, *, direct: bool) -> dict:
    """Run a job; the figures of rank 0, and of the followers."""
    silent = {*range(world_size - 1, 0, -100)} if world_size >= 100 else {world_size - 1}
    written: dict[type, int] = {}

    def counting(kind, name):
        write = getattr(kind, name)

        def counted(self, *notes):
            for key, note in dict([notes] if name == "write" else notes[0]).items():
                written[kind] = written.get(kind, 0) + (len(note) if key.startswith("part") else 0)
            write(self, *notes)

        setattr(kind, name, counted)
        return write

    names = [(board.StoreNotes, "write"), (board.StoreNotes, "write_all"), (node.FileNotes, "write")]
    writes = {one: counting(*one) for one in names}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--rank-0", directory, "--sizes", str(world_size)]
        command += ["--direct"] if direct else []
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        store = dist.TCPStore("127.0.0.1", int(process.stdout.readline()), is_master=False, wait_for_workers=False)
        if not wait_for(20.0, lambda: store.check(["perf_callbacks/verdict"])):
            process.kill()
            raise RuntimeError("rank 0 exchanges nothing")
        followers = Followers(store, world_size, silent, directory, direct=direct)
        followers.cpu = {False: 0.0, True: 0.0}
        for window in range(windows):
            followers.window(window, lambda window=window: print(window, file=process.stdin, flush=True), seconds)
        print(-1, file=process.stdin, flush=True)
        figures = json.loads(process.communicate()[0])
        relays, ordinary = followers.relays, len(followers.ranks) - followers.relays
        result = figures | {
            "silent": len(silent),
            "told": sum(one.latest is not None for one in followers.ranks.values()) / len(followers.ranks),
            "connections": figures["descriptors"][-1],
            "follower_descriptors": followers.descriptors / len(followers.ranks),
            "follower_memory": followers.memory / len(followers.ranks),
            "follower_bytes": written[node.FileNotes if relays else board.StoreNotes] / windows / ordinary,
            "relay_bytes": written[board.StoreNotes] / windows / relays if relays else None,
            "follower_cpu": followers.cpu[False] / windows / ordinary,
            "relay_cpu": followers.cpu[True] / windows / relays if relays else None,
        }
        for one in followers.ranks.values():
            one.leave(politely=False)
    for one, write in writes.items():
        setattr(*one, write)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 64, 512, 1024, 4096])
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0, help="from one window to the next")
    parser.add_argument("--direct", action="store_true", help="each rank talks, also where there are many")
    parser.add_argument("--rank-0", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable()  # rank 0 says that ranks are missing
    if options.rank_0:
        rank_0(options.sizes[0], options.rank_0, direct=options.direct)
        return 0
    print(
        "| ranks | silent | rank 0: CPU | of which side thread | longest slice | connections | read | memory | "
        "follower: CPU | sent | memory | first rank of a machine: CPU | sent |\n" + "|---" * 13 + "|"
    )
    within = True
    for size in options.sizes:
        one = simulate(size, options.windows, options.seconds, direct=options.direct)
        windows = len(one["process"])
        if one["failure"] or one["missing"] != [one["silent"]] * windows or one["told"] < 1:
            print(f"{size} ranks: {one['failure']}, missing {one['missing']}, windows are known to {one['told']:.0%}")
            within = False
        cpu, longest = median(one["process"][1:]), median(one["slice"][1:])
        within = within and cpu < CPU_BUDGET and longest < SLICE_BUDGET
        memories = f"{one['memory'][1] / 1e6:.1f} to {one['memory'][-1] / 1e6:.1f} MB"
        relay = (
            ("—", "—")
            if one["relay_cpu"] is None
            else (f"{one['relay_cpu'] * 1e3:.2f} ms", f"{one['relay_bytes'] / 1e3:.1f} kB")
        )
        print(
            f"| {size:,} | {one['silent']} | {cpu * 1e3:.1f} ms | {max(one['thread'][1:]) * 1e3:.1f} ms | "
            f"{longest * 1e3:.2f} ms | {one['connections']} | {max(one['read'][1:]) / 1e6:.2f} MB | {memories} | "
            f"{one['follower_cpu'] * 1e3:.2f} ms | {one['follower_bytes'] / 1e3:.1f} kB | "
            f"{one['follower_memory'] / 1e3:.0f} kB | {relay[0]} | {relay[1]} |",
            flush=True,
        )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
