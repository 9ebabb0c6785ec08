"""Replaces the placeholders in `output_dir` when a fit starts."""

import re

PLACEHOLDERS = ("job", "run", "host")

PATTERN = rf"(?:[^{{}}]|\{{\{{|\}}\}}|\{{(?:{'|'.join(PLACEHOLDERS)})\}})*"
"""Each brace belongs to a placeholder or is doubled."""

WANTED = "a directory, with {job}, {run} and {host} as placeholders and {{ or }} for a brace, or None"

NO_JOB = "no_job"

LONGEST = 100

_BRACES = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}|\{{\{{|\}}\}}")


def filled(template: str, *, job: str | None, run: str | None, host: str | None) -> str:
    """Replace the placeholders. Slashes in values are replaced too, so no value adds a directory level.

    `run` is None if the ranks have different ids: the job's id then replaces `{run}`.

    >>> filled("out/{job}/{{{run}}}", job="47[1]", run="../a1", host=None)
    'out/47_1_/{_a1}'
    """
    job = job or NO_JOB
    values = {"job": job, "run": run or job, "host": host or "localhost"}
    return _BRACES.sub(lambda match: _name(values[match[1]]) if match[1] else match[0][0], template)


def _name(value: str) -> str:
    return re.sub(r"[^\w.-]", "_", value[:LONGEST]).lstrip(".") or "_"
