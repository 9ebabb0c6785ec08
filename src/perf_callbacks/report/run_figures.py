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
    """Rates and times are of a single rank."""

    run_id: str
    attempt: int = 1
    started_unix: float = 0.0
    directory: str | None = None
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
    step_seconds: float | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    no_cpu_share: float | None = None
    """Of the run, in which the training thread waited for a CPU."""
    others_share: float | None = None
    idle_share: float | None = None
    load_average: float | None = None
    cause: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def load(self) -> Load:
        return Load(self.no_cpu_share, self.others_share, self.idle_share, None, self.load_average)


def from_records(
    run: Run, summary: Summary | None, *, directory: str | None = None, state: str | None = None
) -> RunFigures:
    """Values that no run can have count as unknown."""
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
    load = Load.from_summary(summary.cpu)
    seconds, steps = finite(summary.included_seconds), summary.included_steps
    per_step = {name: _per(finite(amount), steps) for name, amount in summary.stage_seconds.items() if name in STAGES}
    sharing = summary.memory.data_parallel if summary.memory is not None else run.data_parallel
    return replace(
        figures,
        data_parallel=sharing,
        failure=summary.failure,
        steps=steps,
        step_seconds=_per(seconds, steps),
        stage_seconds={name: amount for name, amount in per_step.items() if amount is not None},
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
    """With keys such as `data_time` and `version_torch`."""
    values = asdict(figures)
    stages, versions = values.pop("stage_seconds"), values.pop("versions")
    return {
        **values,
        **{name: stages.get(name) for name in STAGES},
        **{f"version_{name}": version for name, version in versions.items()},
    }


def _per(amount: float | None, whole: float | None) -> float | None:
    """None also if the quotient is impossible."""
    return None if amount is None or not whole else finite(amount / whole)
