"""Public name of `perf_callbacks.launch.run`, for `python -m perf_callbacks.run [-m] TARGET args…`."""

import sys

from perf_callbacks.launch.run import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
