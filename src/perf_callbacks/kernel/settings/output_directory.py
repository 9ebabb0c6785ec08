"""Replace the placeholders in `output_dir` when a fit starts."""

import re

PLACEHOLDERS = ("job", "run", "host")

PATTERN = rf"(?:[^{{}}]|\{{\{{|\}}\}}|\{{(?:{'|'.join(PLACEHOLDERS)})\}})*"
"""Regular expression for directories. Each brace must belong to a placeholder or be doubled."""

WANTED = "a directory, with {job}, {run} and {host} as placeholders and {{ or }} for a brace, or None"

NO_JOB = "no_job"
"""Text that replaces `{job}` in a process without a job id."""

LONGEST = 100
"""Largest number of characters of a value that replaces a placeholder."""

_BRACES = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}|\{{\{{|\}}\}}")


def filled(template: str, *, job: str | None, run: str | None, host: str | None) -> str:
    """Replace the placeholders in a directory. Slashes in values are replaced too, so no value adds a directory level.

    Args:
        template: Directory with placeholders, as in the settings.
        job: Id of the job. None if the process has no job id.
        run: Id of the run. None if the ranks have different ids. With None, the job's id replaces `{run}`.
        host: Name of the host. None: unknown.

    >>> filled("out/{job}/{{{run}}}", job="47[1]", run="../a1", host=None)
    'out/47_1_/{_a1}'
    """
    job = job or NO_JOB
    values = {"job": job, "run": run or job, "host": host or "localhost"}
    return _BRACES.sub(lambda found: _name(values[found[1]]) if found[1] else found[0][0], template)


def _name(value: str) -> str:
    return re.sub(r"[^\w.-]", "_", value[:LONGEST]).lstrip(".") or "_"
