"""Placeholders in `output_dir`, which the start of a fit replaces."""

import re

PLACEHOLDERS = ("job", "run", "host")

PATTERN = rf"(?:[^{{}}]|\{{\{{|\}}\}}|\{{(?:{'|'.join(PLACEHOLDERS)})\}})*"
"""Directories whose braces are placeholders, or doubled."""

WANTED = "a directory, with {job}, {run} and {host} as placeholders and {{ or }} for a brace, or None"

NO_JOB = "no_job"
"""Replaces `{job}` in a process without a job id."""

LONGEST = 100
"""Most characters of a value that replaces a placeholder."""

_BRACES = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}|\{{\{{|\}}\}}")


def filled(template: str, *, job: str | None, run: str | None, host: str | None) -> str:
    """Replace the placeholders in a directory. No value adds a level of directories.

    Args:
        template: The directory, as in the settings.
        job: Id of the job. None: the process has none.
        run: Id of the run. None: the ranks don't share an id, and the job's id replaces `{run}`.
        host: Name of the host. None: unknown.

    >>> filled("out/{job}/{{{run}}}", job="47[1]", run="../a1", host=None)
    'out/47_1_/{_a1}'
    """
    job = job or NO_JOB
    values = {"job": job, "run": run or job, "host": host or "localhost"}
    return _BRACES.sub(lambda found: _name(values[found[1]]) if found[1] else found[0][0], template)


def _name(value: str) -> str:
    """Return a value as the name of a file."""
    return re.sub(r"[^\w.-]", "_", value[:LONGEST]).lstrip(".") or "_"
