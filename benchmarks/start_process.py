"""How long a start of a process stops the training thread, by the memory of the process: `python start_process.py 10`.

A thread that only reads the clock stands for the training: its longest pause is printed, while another thread starts
processes, writes into a pipe, or sleeps. Linux only. The memory is private, and in small pages, as allocators give it.
"""

import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

TURNS = 20
PAGE = 4096


class Training:
    """A busy thread that measures its longest pause."""

    def __init__(self):
        self._asked, self._ended = threading.Event(), False
        self._answered, self._worst = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        last, worst = time.perf_counter(), 0.0
        while not self._ended:
            now = time.perf_counter()
            worst, last = max(worst, now - last), now
            if self._asked.is_set():
                self._worst, worst = worst, 0.0
                self._asked.clear()
                self._answered.set()

    def longest_pause(self):
        """The longest pause since the last call, in seconds."""
        self._answered.clear()
        self._asked.set()
        self._answered.wait()
        return self._worst

    def end(self):
        self._ended = True
        self._thread.join()


def starting(command, started):
    def start():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, start_new_session=True, **pipes))
        started[-1].stdin.close()

    return start


def main():
    size = max(PAGE, int(float(sys.argv[1]) * 1e9))
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, size, PAGE):
        memory[at] = 1
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE / 1e9
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    started = []
    actions = {
        "sleep of 2 ms (control)": (lambda: time.sleep(0.002), True),
        "write of 2 kB into a pipe": (lambda: os.read(reading, os.write(writing, b"x" * 2000)), True),
        "start of `true`": (starting(["true"], started), True),
        "start of `python -I -S`": (starting([sys.executable, "-I", "-S", "-c", "pass"], started), True),
        "start of `true` without vfork": (starting(["true"], started), False),
    }
    sys.setswitchinterval(1e-5)
    training = Training()
    print(f"| in a process with {resident:.1f} GB | the call | training thread stopped: median | worst |")
    print("|---|---|---|---|")
    for name, (action, vfork) in actions.items():
        subprocess._USE_VFORK = vfork  # noqa: SLF001 the standard library has no public switch
        calls, pauses = [], []
        for _ in range(TURNS):
            training.longest_pause()
            began = time.perf_counter()
            action()
            calls.append(time.perf_counter() - began)
            pauses.append(training.longest_pause())
        cells = [sorted(calls)[TURNS // 2], sorted(pauses)[TURNS // 2], max(pauses)]
        print(f"| {name} | " + " | ".join([f"{1000 * seconds:.2f} ms" for seconds in cells]) + " |", flush=True)
    training.end()
    for process in started:
        process.wait()


if __name__ == "__main__":
    main()
