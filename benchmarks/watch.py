"""What a view costs: the first frame of a long job on many ranks, and CPU time and memory while the job goes on.

    python benchmarks/watch.py                          # 64 ranks of 100,000 steps, 30 seconds; some 800 MB of journals
    python benchmarks/watch.py --steps 2000 --ranks 4 --seconds 10

The job is that of `report.py`, with steps of a fiftieth of a second. As in a real job, each rank appends its steps
every second and replaces its summary every ten. The view is drawn in a pseudo-terminal of 200 x 50, twice a second.
"""

import argparse
import fcntl
import os
import pty
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import replace
from pathlib import Path

from report import BLOCK, CHECKLIST, STEP_SECONDS, a_run, a_summary, block

from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry, encode

WRITE_SECONDS, REPLACE_WRITES, WRITTEN = 1.0, 10, 50
TICKS = os.sysconf("SC_CLK_TCK")


def write(folder: Path, ranks: int, steps: int, started: float) -> None:
    """Write the journals up to now. All ranks have the same steps."""
    noise = random.Random(0)
    lines = [encode(Entry(0.0, one)) for one in CHECKLIST]
    for first in range(1, steps + 1, BLOCK):
        numbers = range(first, min(first + BLOCK, steps + 1))
        lines += [encode(entry) for entry in block(numbers, 0, noise, first * STEP_SECONDS)]
    text = "\n".join(lines) + "\n"
    for rank in range(ranks):
        run = replace(a_run(rank, ranks, 1, 0), started_unix=started)
        (folder / f"rank{rank}.jsonl").write_text(f"{encode(Entry(0.0, run))}\n{text}")
        replace_summary(folder, rank, steps, steps * STEP_SECONDS)


def replace_summary(folder: Path, rank: int, step: int, now: float) -> None:
    interim.write(folder / f"rank{rank}.jsonl", Entry(now, a_summary(1, step, step, now)))


def go_on(folder: Path, ranks: int, steps: int, started: float, over: threading.Event) -> None:
    """Write as the ranks of a job do, until the measuring is over."""
    noise, turn = random.Random(0), 0
    done = dict.fromkeys(range(ranks), steps)
    while not over.wait(WRITE_SECONDS / ranks):
        rank, turn, now = turn % ranks, turn + 1, time.time() - started
        numbers = range(done[rank] + 1, done[rank] + WRITTEN + 1)
        done[rank] += WRITTEN
        with (folder / f"rank{rank}.jsonl").open("a") as journal:
            journal.write("".join(encode(entry) + "\n" for entry in block(numbers, rank, noise, now)))
        if turn // ranks % REPLACE_WRITES == rank % REPLACE_WRITES:
            replace_summary(folder, rank, done[rank], now)


def first_frame(directory: Path) -> str:
    seconds, cpu = [], []
    for _ in range(5):
        began, used_before = time.perf_counter(), os.times()
        subprocess.run([*WATCH, str(directory), "--once"], stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - began)
        now = os.times()
        cpu.append(now.children_user + now.children_system - used_before.children_user - used_before.children_system)
    lasted, took = statistics.median(seconds), statistics.median(cpu)
    return f"first frame, with the start of Python: {lasted:.2f} s, {took:.2f} s of CPU time, medians of 5"


WATCH = (sys.executable, "-m", "perf_callbacks", "watch")


def live(directory: Path, seconds: float) -> str:
    """Measure the view for some seconds, after five seconds."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen([*WATCH, str(directory)], stdin=theirs, stdout=theirs, env=environ)
    drain(ours, 5.0)
    before = used(process.pid)
    shown = drain(ours, seconds)
    share = (used(process.pid) - before) / seconds
    status = Path(f"/proc/{process.pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    os.write(ours, b"q")
    drain(ours, 1.0)
    assert process.wait() == 0
    drawn = f"{shown / seconds / 1024:.0f} kiB/s to the terminal"
    return f"live: {share:.2%} of a core, {memory / 1024:.0f} MiB at most, {drawn}"


def used(pid: int) -> float:
    """Return the CPU time of a process: user and system."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def drain(terminal: int, seconds: float) -> int:
    """Read what the view draws, and return its bytes."""
    end, size = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            size += len(os.read(terminal, 65_536))
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "perf_callbacks"
        folder.mkdir()
        started = time.time() - arguments.steps * STEP_SECONDS
        write(folder, arguments.ranks, arguments.steps, started)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{arguments.steps:,} steps on {arguments.ranks} ranks: {size / 1e6:.0f} MB of journals")
        print(first_frame(Path(temporary)))
        over = threading.Event()
        writer = threading.Thread(target=go_on, args=(folder, arguments.ranks, arguments.steps, started, over))
        writer.start()
        try:
            print(live(Path(temporary), arguments.seconds))
        finally:
            over.set()
            writer.join()


if __name__ == "__main__":
    main()
