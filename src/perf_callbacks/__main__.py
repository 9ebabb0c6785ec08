"""`python -m perf_callbacks` is `perf-callbacks`, where the command is not on the path."""

import sys

from perf_callbacks.commands import main

if __name__ == "__main__":
    sys.exit(main())
