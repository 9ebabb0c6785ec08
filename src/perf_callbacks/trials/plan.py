"""Files between `perf-callbacks try` and the program: the plan of a trial, and its outcome."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perf_callbacks.kernel.records.fit_records import Finding, Run
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.trials import TRIAL

SAVES, RESUMES, FAILED = "saves", "resumes", "failed"
"""Reasons why a trial ended without a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramChange:
    """Change to a program, made from outside."""

    name: str
    """Name of a remedy, such as "workers"."""
    value: int | None = None
    """Number that belongs to the change, such as the number of workers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Task of a trial: the changes to make, and the steps to measure."""

    scratch: str
    """Directory for everything that the trial writes."""
    changes: tuple[ProgramChange, ...] = ()
    steps: int = 60
    """Least number of measured steps."""
    seconds: float = 10.0
    """Least duration of the measured steps."""
    probe: bool = False
    """True: the trial looks for findings. Its time doesn't count."""
    yes: bool = False
    """True: the program may save files, and may resume. False: the trial leaves such a program at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Properties of a program. A later run with the same properties is a run of the same program."""

    program: str | None
    directory: str | None
    model: str | None
    parameters: int | None
    batch: int | None
    device: str
    world_size: int

    @classmethod
    def of(cls, run: Run) -> "Identity":
        """Return the identity of a run's program. Paths are escaped, because JSON can't hold other bytes than UTF-8."""
        return cls(
            program=None if run.program is None else printable(run.program),
            directory=None if run.directory is None else printable(run.directory),
            model=run.model,
            parameters=run.parameters,
            batch=run.batch,
            device=run.device,
            world_size=run.world_size,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOutcome:
    """Result of a trial: times, losses and findings, or the reason why there is no time."""

    steps: int = 0
    """Number of measured steps."""
    seconds: float = 0.0
    """Duration of the measured steps, without evaluations and checkpoints."""
    losses: tuple[float, ...] = ()
    """Losses of the first backward calls."""
    applied: tuple[str, ...] = ()
    """Names of the changes that had something to change."""
    why: str | None = None
    """Reason why there is no time: one of `SAVES`, `RESUMES`, `FAILED`."""
    place: str = ""
    """Line of the program that saves or resumes, or the text of an error."""
    findings: tuple[Finding, ...] = ()
    """Findings of a probe."""
    pinned: bool = False
    """True: the checklist pinned batches in the probe."""
    bound: bool = False
    """True: the checklist bound the probe to CPUs."""
    own_callback: bool = False
    """True: the program itself has the callback, with settings of its own."""
    identity: Identity | None = None

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a step. None: no step was measured."""
        return self.seconds / self.steps if self.steps else None


def current(environ: Mapping[str, str] = os.environ) -> Plan | None:
    """Read the plan of the trial that this process is part of. None: this process is part of no trial."""
    path = environ.get(TRIAL)
    return None if not path else msgspec.json.decode(Path(path).read_bytes(), type=Plan)


def outcome_path(plan_path: Path) -> Path:
    """Return the path of a trial's outcome."""
    return plan_path.with_suffix(".outcome")


def write(path: Path, content: Plan | TrialOutcome) -> None:
    """Write a plan or an outcome, atomically."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(msgspec.json.encode(content))
    part.replace(path)
