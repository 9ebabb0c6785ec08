"""Makes `python -m perf_callbacks` do the same as the command `perf-callbacks`, which may not be on the path."""

import sys

from perf_callbacks.commands import main

if __name__ == "__main__":
    sys.exit(main())
