"""Title of a run: its program, model and host, as the `run` record knows them."""

import re
from pathlib import PurePosixPath

from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.report.units import count

LONGEST = 48
"""Most characters of each part of a title."""


def title(run: Run) -> str:
    """Return program, model and host of a run. Without a program and a model, the integration stands for them.

    >>> title(Run(run_id="a", attempt=1, step=0, rank=0, world_size=1, device="cpu", timeline="host", door="loop",
    ...     versions={}, config={}, started_unix=0.0, program="/home/me/train.py", model="Llama", host="node7"))
    'train.py · Llama · on node7'
    """
    return " · ".join([*_of_program(run), *([f"on {_short(run.host)}"] if run.host else [])])


def subject(run: Run) -> str:
    """Return program and model of a run."""
    return " · ".join(_of_program(run))


def details(run: Run, ranks: int) -> str:
    """Return model size, device, number of ranks and job of a run."""
    size = f"{count(run.parameters)} parameters" if run.parameters else ""
    job = f"job {_short(run.job_id)}" if run.job_id else ""
    several = f"{ranks:,} ranks" if ranks > 1 else "1 process"
    attempt = f"attempt {run.attempt} from step {run.step:,}" if run.attempt > 1 else ""
    return " · ".join(filter(None, [size, _short(run.device), several, job, attempt]))


def _of_program(run: Run) -> list[str]:
    program = PurePosixPath((run.program or "").replace("\\", "/")).name
    if program == "__main__.py":  # a directory or an archive that Python runs
        program = PurePosixPath((run.program or "").replace("\\", "/")).parent.name
    known = [program if program != "-c" else "", run.model or ""]
    return [_short(part) for part in known if part] or [f"{_short(run.door)} {_short(run.run_id)[:8]}"]


def _short(text: str) -> str:
    """Return a text without line breaks, cut in the middle if it is long."""
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[1 - LONGEST // 2 :]}"
