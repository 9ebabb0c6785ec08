"""The kit of processes: a program that runs to its end, or a job of several ranks, each a process of its own.

The ranks of a job run one program with one protocol: `jobs.rank` is what the program is told and leaves behind, `Job`
is what the test sees of it. The other modules are such programs, and `jobs.exchanges` has ranks within one process.
"""

from jobs.job import IMPORTS, PROMPT, Job
from jobs.processes import (
    PATHS,
    TESTS,
    Process,
    free_port,
    program_environ,
    python,
    rank_environ,
    run,
    start,
    until,
)

__all__ = [
    "IMPORTS",
    "PATHS",
    "PROMPT",
    "TESTS",
    "Job",
    "Process",
    "free_port",
    "program_environ",
    "python",
    "rank_environ",
    "run",
    "start",
    "until",
]
