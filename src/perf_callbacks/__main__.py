"""Entry point of `python -m perf_callbacks`, which does the same as the command `perf-callbacks`."""

import sys

from perf_callbacks.commands import main

if __name__ == "__main__":
    sys.exit(main())
