"""What a command tells its caller: its exit status, and the version of its JSON."""

from enum import IntEnum

JSON_SCHEMA = 1
"""Incremented when a key is removed or changes its meaning. docs/looking.md lists the keys of `show`."""


class ExitStatus(IntEnum):
    """0 is success, and 2 a usage error."""

    LEFT_TO_DO = 1
    """`check`: something is left to do by hand."""
    TO_CHANGE = 1
    """`shapes`: a size should change."""
    REGRESSION = 1
    """`compare`: the new run is slower."""
    UNKNOWN = 2
    """`compare`: no verdict is possible."""
    INTERRUPTED = 130
    """After Ctrl-C."""
    PIPE_CLOSED = 141
    """The output's pipe was closed, as in `perf-callbacks status | head -1`."""
    TERMINATED = 143
