"""Run `python -m perf_callbacks` as `perf-callbacks`, if the command is not on the path."""

import sys

from perf_callbacks.commands import main

if __name__ == "__main__":
    sys.exit(main())
