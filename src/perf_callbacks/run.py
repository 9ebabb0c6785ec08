"""Entry point of `python -m perf_callbacks.run [-m] TARGET args…`, which runs a program and measures it."""

import sys

from perf_callbacks.launch.run import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
