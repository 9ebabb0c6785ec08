"""The kit of processes: a program that runs to its end, or a job of several ranks, each a process of its own.

The ranks of a job run one program with one protocol: `jobs.rank` is what the program is told and leaves behind, `Job`
is what the test sees of it. The program is a file of this folder, or the file of the only test that needs it.
`jobs.exchanges` has ranks within one process.
"""

from jobs.job import IMPORTS, PROMPT, Job
from jobs.processes import PATHS, TESTS, free_port, program_environ, python, run, until

__all__ = ["IMPORTS", "PATHS", "PROMPT", "TESTS", "Job", "free_port", "program_environ", "python", "run", "until"]
