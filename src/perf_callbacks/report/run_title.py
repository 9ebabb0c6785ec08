"""Title of a run: its program, model and host, from the journal's record `run`."""

import re
from pathlib import PurePosixPath
from typing import Any

from perf_callbacks.kernel.records.fit_records import Run
from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.report.history import FitHistory
from perf_callbacks.report.layout import clean, few
from perf_callbacks.report.opening_card import TIMELINES
from perf_callbacks.report.units import count, when

LONGEST = 48


def title(run: Run) -> str:
    """Program, model and host, or else the integration and the run's id.

    >>> title(Run(run_id="a", attempt=1, step=0, rank=0, world_size=1, device="cpu", timeline="host", door="loop",
    ...     versions={}, config={}, started_unix=0.0, program="/home/me/train.py", model="Llama", host="node7"))
    'train.py · Llama · on node7'
    """
    return subject(run) + (f" · on {_short(run.host)}" if run.host else "")


def subject(run: Run) -> str:
    path = PurePosixPath((run.program or "").replace("\\", "/"))
    program = path.parent.name if path.name == "__main__.py" else path.name  # a directory or an archive
    parts = [_short(part) for part in (program if program != "-c" else "", run.model) if part]
    return " · ".join(parts) or f"{_short(run.door)} {_short(run.run_id)[:8]}"


def details(run: Run, ranks: int) -> str:
    size = f"{count(run.parameters)} parameters" if run.parameters else ""
    job = f"job {_short(run.job_id)}" if run.job_id else ""
    several = f"{ranks:,} ranks" if ranks > 1 else "1 process"
    attempt = f"attempt {run.attempt} from step {run.step:,}" if run.attempt > 1 else ""
    return " · ".join(filter(None, [size, _short(run.device), several, job, attempt]))


def heading(fit: FitHistory) -> dict[str, Any]:
    run = fit.run
    several = f"{fit.world_size:,}" if fit.world_size > 1 else "1 process"
    size = f"{count(run.parameters)} parameters" if run.parameters and run.parameters > 0 else ""
    devices = f"{run.devices:,} of " if run.devices > 1 else ""
    facts = [
        ("model", ", ".join(filter(None, [run.model, size]))),
        ("host", hosts(fit)),
        ("device", devices + run.device),
        ("ranks", several),
        ("batch", f"{run.batch:,} samples per rank" if run.batch else ""),
        ("integration", run.door),
        ("timed by", TIMELINES.get(run.timeline, run.timeline)),
        ("job", run.job_id or ""),
        ("attempts", f"{len(fit.first):,}" if len(fit.first) > 1 else ""),
        ("started", when(fit.first[0].run.started_unix)),
        ("run", run.run_id),
    ]
    return {
        "run": run.run_id,
        "name": title(run),
        "command": clean(run.command_line, LONGEST_TEXT) if run.command_line else "",
        "facts": [(name, clean(text, LONGEST_TEXT)) for name, text in facts if text],
        "version": f"perf_callbacks {run.versions.get('perf_callbacks', '')}".strip(),
    }


def hosts(fit: FitHistory) -> str:
    return few(sorted({attempt.run.host for attempt in fit.last if attempt.run.host}))


def _short(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[1 - LONGEST // 2 :]}"
