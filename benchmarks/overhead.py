"""What measuring costs, in microseconds per optimizer step, beside what others cost.

Within one process and one training run, variants take turns of 576 steps, of which the last 256 count: FLOPs are
counted in a few steps before these, and later in one of 1,009. Variants are nothing again (the A/A control), an empty
callback, ours, others, and nothing before and after each of them. A block's figures are its quiet step (the 10th
percentile by the clock, which other work on the machine disturbs least), and its mean step in CPU time, in which what
is done every 256 steps is seen too; both are compared with the mean of the blocks of nothing around it. Blocks with a
full garbage collection are left out, whoever asked for it (`occasional.py` tells what ours takes). Printed are medians
of the differences with 95 % bootstrap intervals. Each block of ours is a fit of its own, begun and ended outside of
what is timed.

Others take part where they are installed (see `peers.py`), each door in a process of its own. Lightning's
ThroughputMonitor always does, and Megatron's timers, re-stated here: three of them, started and stopped around forward,
backward and optimizer.

    python benchmarks/overhead.py --cycles 40 --doors loop transformers lightning accelerate
"""

import argparse
import contextlib
import importlib
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import peers
import torch

DOORS = ("loop", "transformers", "lightning", "accelerate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=DOORS)
    arguments = parser.parse_args()
    if len(arguments.doors) == 1:
        measure(arguments.doors[0], arguments.cycles)
        return
    for name in arguments.doors:
        subprocess.run([sys.executable, __file__, "--cycles", str(arguments.cycles), "--doors", name], check=True)
    print(f"\n{peers.left_out()}")


def measure(door: str, cycles: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TRACEML_LOGS_DIR": directory}
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(Path(os.devnull).open("w")):
            turns = importlib.import_module(f"doors.{door}").run(cycles, directory)
        turns.report(door)


if __name__ == "__main__":
    main()
