"""Figures of a run in one record: program, model, machine, speed, and load of the machine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.report.history import finite
from perf_callbacks.report.machine_load import Load
from perf_callbacks.report.series import STAGES


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFigures:
    """The figures of a run. Rates and times are of a single rank. None means unknown."""

    run_id: str
    attempt: int = 1
    started_unix: float = 0.0
    directory: str | None = None
    """Output directory."""
    program: str | None = None
    command_line: str | None = None
    model: str | None = None
    parameters: int | None = None
    batch: int | None = None
    device: str | None = None
    devices: int = 1
    world_size: int = 1
    data_parallel: int | None = None
    host: str | None = None
    job_id: str | None = None
    integration: str | None = None
    state: str | None = None
    failure: str | None = None
    steps: int = 0
    """Measured steps."""
    step_seconds: float | None = None
    """Mean time of a measured step."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """Mean time of each stage in a measured step."""
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    no_cpu_share: float | None = None
    """Share of the run in which the training thread waited for a CPU."""
    others_share: float | None = None
    idle_share: float | None = None
    load_average: float | None = None
    cause: str | None = None
    """Cause of the worst finding."""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def load(self) -> Load:
        return Load(self.no_cpu_share, self.others_share, self.idle_share, None, self.load_average)


def of(run: Run, summary: Summary | None, *, directory: str | None = None, state: str | None = None) -> RunFigures:
    """Return the figures of a run. Values that no run can have count as unknown."""
    figures = RunFigures(
        run_id=run.run_id,
        attempt=run.attempt,
        started_unix=finite(run.started_unix) or 0.0,
        directory=directory,
        program=run.program,
        command_line=run.command_line,
        model=run.model,
        parameters=run.parameters,
        batch=run.batch,
        device=run.device,
        devices=run.devices,
        world_size=run.world_size,
        data_parallel=run.data_parallel,
        host=run.host,
        job_id=run.job_id,
        integration=run.door,
        state=state,
        versions=run.versions,
    )
    if summary is None:
        return figures
    load = Load.of(summary.cpu)
    seconds, steps = finite(summary.included_seconds), summary.included_steps
    per_step = {name: _per(finite(one), steps) for name, one in summary.stage_seconds.items() if name in STAGES}
    sharing = summary.memory.data_parallel if summary.memory is not None else run.data_parallel
    return replace(
        figures,
        data_parallel=sharing,
        failure=summary.failure,
        steps=steps,
        step_seconds=_per(seconds, steps),
        stage_seconds={name: one for name, one in per_step.items() if one is not None},
        samples_per_second=_per(finite(summary.included_samples), seconds),
        tokens_per_second=_per(finite(summary.included_tokens), seconds),
        mfu=finite(summary.mfu),
        hfu=finite(summary.hfu),
        no_cpu_share=load.no_cpu,
        others_share=load.others,
        idle_share=load.idle,
        load_average=load.load_average,
        cause=summary.findings[0].cause if summary.findings else None,
    )


def flat(figures: RunFigures) -> dict[str, Any]:
    """Return the figures as a flat dict of plain values, with keys such as `data_time` and `version_torch`."""
    found = asdict(figures)
    stages, versions = found.pop("stage_seconds"), found.pop("versions")
    return {
        **found,
        **{name: stages.get(name) for name in STAGES},
        **{f"version_{name}": version for name, version in versions.items()},
    }


def _per(amount: float | None, whole: float | None) -> float | None:
    """Return the quotient, or None if the quotient is unknown or impossible."""
    return None if amount is None or not whole else finite(amount / whole)
