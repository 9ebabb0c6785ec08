"""Figures of a run in one record: program, model, machine, speed, and load of the machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from perf_callbacks.kernel.records.fit_records import Run, Summary
from perf_callbacks.report.history import possible
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
    def samples_per_second_per_device(self) -> float | None:
        """Samples per second, divided by the number of devices. None means unknown."""
        groups = 1 if self.world_size == 1 else self.data_parallel
        if self.samples_per_second is None or groups is None or self.devices < 1 or self.world_size < 1:
            return None
        return self.samples_per_second * groups / (self.devices * self.world_size)

    @property
    def load(self) -> Load:
        """Load of the machine."""
        return Load(self.no_cpu_share, self.others_share, self.idle_share, None, self.load_average)


def of(run: Run, summary: Summary | None, *, directory: str | None = None, state: str | None = None) -> RunFigures:
    """Return the figures of a run. Values that no run can have count as unknown."""
    load = Load.of(None if summary is None else summary.cpu)
    seconds = None if summary is None else _known(summary.included_seconds)
    steps = 0 if summary is None else summary.included_steps
    stages = {} if summary is None or not steps else summary.stage_seconds
    return RunFigures(
        run_id=run.run_id,
        attempt=run.attempt,
        started_unix=_known(run.started_unix) or 0.0,
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
        failure=None if summary is None else summary.failure,
        steps=steps,
        step_seconds=_per(seconds, steps),
        stage_seconds={
            name: per
            for name, one in stages.items()
            if name in STAGES and (per := _per(_known(one), steps)) is not None
        },
        samples_per_second=None if summary is None else _per(_known(summary.included_samples), seconds),
        tokens_per_second=None if summary is None else _per(_known(summary.included_tokens), seconds),
        mfu=None if summary is None else _known(summary.mfu),
        hfu=None if summary is None else _known(summary.hfu),
        no_cpu_share=load.no_cpu,
        others_share=load.others,
        idle_share=load.idle,
        load_average=load.load_average,
        cause=summary.findings[0].cause if summary is not None and summary.findings else None,
        versions=run.versions,
    )


def early(
    figures: RunFigures,
    *,
    steps: int,
    seconds: float,
    stages: Mapping[str, float],
    samples: float | None,
    tokens: float | None,
) -> RunFigures:
    """Return a copy of the figures, in which steps, times and rates cover only a part of the run."""
    return replace(
        figures,
        steps=steps,
        step_seconds=_per(seconds, steps),
        stage_seconds={name: spent / steps for name, spent in stages.items()},
        samples_per_second=_per(samples, seconds),
        tokens_per_second=_per(tokens, seconds),
    )


def flat(figures: RunFigures) -> dict[str, Any]:
    """Return the figures as a flat dict of plain values, with keys such as `data_time` and `version_torch`."""
    found = {one.name: getattr(figures, one.name) for one in fields(RunFigures)}
    stages, versions = found.pop("stage_seconds"), found.pop("versions")
    return {
        **found,
        **{name: stages.get(name) for name in STAGES},
        **{f"version_{name}": version for name, version in versions.items()},
    }


def _known(value: float | None) -> float | None:
    return value if value is not None and possible(value) else None


def _per(amount: float | None, whole: float | None) -> float | None:
    return None if amount is None or not whole else _known(amount / whole)
