"""How well does a measured peak repeat? Measures it in fresh processes, one after the other, and prints the spread.

python benchmarks/peak.py --times 20
"""

import argparse
import os
import statistics
import subprocess
import sys

ONCE = """
import json, torch
from perf_callbacks.flops.peaks.matmul_peak import measure
found = measure(torch.device("cpu"), ["float32"], cpu_clock=None)["float32"]
print(found.flops_per_second / 1e9, found.size)
"""


def main() -> None:
    """Print each peak, and by how much they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="processes (default: 10)")
    arguments = parser.parse_args()
    peaks: list[float] = []
    for _ in range(arguments.times):
        out = subprocess.run([sys.executable, "-c", ONCE], check=True, capture_output=True, text=True).stdout
        rate, size = out.split()
        peaks.append(float(rate))
        busy = os.getloadavg()[0]
        print(f"{float(rate):8.2f} GFLOPS at {size:>4}, load {busy:.1f}")
    best = sorted(peaks)[len(peaks) // 2 :]
    for name, some in (("all", peaks), ("the better half", best)):
        spread = (max(some) - min(some)) / max(some)
        print(f"{name}: {len(some)}, median {statistics.median(some):.2f} GFLOPS, from least to most {spread:.1%}")


if __name__ == "__main__":
    main()
