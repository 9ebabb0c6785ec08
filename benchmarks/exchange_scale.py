"""Cost of the exchange between ranks: CPU, connections, bytes and memory per window.

    python benchmarks/exchange_scale.py                       # 8 to 4,096 ranks
    python benchmarks/exchange_scale.py --sizes 512 --direct  # each rank with a connection of its own

Rank 0 is a process of its own, with a real TCPStore, the side thread of a fit, and windows of 50 steps with six
signals. The other ranks are simulated in this process: each does the rounds of a real rank, with a real connection or
files. One rank in a hundred (at least one) is silent from the start, so that every window goes on to its deadline.
The training thread of rank 0 is idle. Its CPU is that of the whole process: side thread, and the server of the store.
"""
# ruff: noqa: SLF001

import argparse
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
from dataclasses import replace
from pathlib import Path
from random import Random

import torch.distributed as dist

from perf_callbacks.core.windows import Part
from perf_callbacks.ranks import leader, node, rounds, store as board
from perf_callbacks.ranks.exchange import Exchange
from perf_callbacks.ranks.node import Node
from perf_callbacks.ranks.rounds import Follower

PER_NODE = 8
LENGTH = 50
SIGNALS = ("compute", "gc", "data", "delay", "host", "step")
ASKS = {"gc_interval": 100, "keep gc": 0, "keep loaders": 0, "keep affinity": 0}
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


def rank_0(world_size: int, directory: str, *, direct: bool) -> None:
    """Rank 0, told by its input when a window is over."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    before, opened, slices, read = memory(), descriptors(), Slices(), []
    leader.time = type("Time", (), {"sleep": slices.sleep})
    exchange = Exchange(
        server, rank=0, world_size=world_size, window=LENGTH, run_id="run", stragglers=True,
        node=node_of(0, world_size, directory, direct=direct),
    )  # fmt: skip
    step, get, in_thread = exchange._rounds.step, board.Board.get, [0.0]

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

    exchange._rounds.step, board.Board.get = timed_step, counted_get
    exchange.start()
    print(server.port, flush=True)
    figures = []
    for line in sys.stdin:
        window = int(line)
        figures.append((time.process_time(), in_thread[0], sum(read), slices.longest, memory(), descriptors()))
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


def simulate(world_size: int, windows: int, seconds: float, *, direct: bool) -> dict:
    """Run a job; the figures of rank 0, and of the followers."""
    silent = {*range(world_size - 1, 0, -100)} if world_size >= 100 else {world_size - 1}
    written, random = [0, 0], Random(0)
    set_, write = board.Board.write, node.Folder.write

    def counted_set(self, key, note):
        written[0] += len(note) if key.startswith("part") else 0
        set_(self, key, note)

    def counted_write(self, key, note):
        written[1] += len(note) if key.startswith("part") else 0
        write(self, key, note)

    board.Board.write, node.Folder.write = counted_set, counted_write
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--rank-0", directory, "--sizes", str(world_size)]
        command += ["--direct"] if direct else []
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port = int(process.stdout.readline())
        before, opened = memory(), descriptors()
        stores = itertools.repeat(dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))
        ranks = {
            rank: Follower(
                store, rank=rank, world_size=world_size, node=node_of(rank, world_size, directory, direct=direct)
            )
            for rank, store in zip([rank for rank in range(1, world_size) if rank not in silent], stores, strict=False)
        }
        due, cpu, count = [(0.0, rank) for rank in ranks], {False: 0.0, True: 0.0}, itertools.count()
        heapq.heapify(due)
        columns = a_part(1, world_size, 0, random)

        def until(deadline):
            while due and due[0][0] < deadline:
                at, rank = heapq.heappop(due)
                time.sleep(max(0.0, at - time.monotonic()))
                began = time.thread_time()
                pause = ranks[rank].step(time.monotonic())
                cpu[ranks[rank]._relay is not None] += time.thread_time() - began
                if pause is not None:
                    heapq.heappush(due, (time.monotonic() + pause, rank))
            time.sleep(max(0.0, deadline - time.monotonic()))

        until(time.monotonic() + 15.0)
        began, settled = dict(cpu), [*written]
        for window in range(windows):
            print(window, file=process.stdin, flush=True)
            now = time.monotonic()
            for rank, one in ranks.items():
                one.offers.append(replace(columns, rank=rank, window=window))
            due[:] = [(now + (next(count) % 97) / 970, rank) for rank in ranks]
            heapq.heapify(due)
            until(now + seconds)
        print(-1, file=process.stdin, flush=True)
        figures = json.loads(process.communicate()[0])
        relays = sum(one._relay is not None for one in ranks.values())
        told = sum(one.latest is not None for one in ranks.values())
        result = figures | {
            "silent": len(silent),
            "told": told / len(ranks),
            "connections": figures["descriptors"][-1],
            "follower_descriptors": (descriptors() - opened) / len(ranks),
            "follower_memory": (memory() - before) / len(ranks),
            "follower_bytes": (written[1] - settled[1] if relays else written[0] - settled[0])
            / windows
            / (len(ranks) - relays),
            "relay_bytes": (written[0] - settled[0]) / windows / relays if relays else None,
            "follower_cpu": (cpu[False] - began[False]) / windows / (len(ranks) - relays),
            "relay_cpu": (cpu[True] - began[True]) / windows / relays if relays else None,
        }
        for one in ranks.values():
            one.leave(politely=False)
    board.Board.write, node.Folder.write = set_, write
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
        cpu, longest = max(one["process"][1:]), max(one["slice"][1:])
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
