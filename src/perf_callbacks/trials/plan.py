"""Files that `perf-callbacks try` and the program exchange: the plan of a trial, and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from perf_callbacks.kernel.records import atomic_file
from perf_callbacks.kernel.records.fit_records import Finding, Run
from perf_callbacks.kernel.settings.config import printable

SAVES, RESUMES, FAILED = "saves", "resumes", "failed"
"""Reasons why a trial ended without a measured time."""


Changes = Mapping[str, int | None]
"""Changes that a trial makes to a program from outside: the name of each remedy, and its number or None.

For example, the number of the remedy "workers" is the number of workers.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Plan of a trial, which says what to change and how many steps to measure."""

    scratch: str
    """Directory for everything that the trial writes."""
    changes: Changes = field(default_factory=dict)
    steps: int = 60
    """Least number of measured steps."""
    seconds: float = 10.0
    """Least duration of the measured steps in seconds."""
    probe: bool = False
    """True: the trial only looks for findings, and its time doesn't count."""
    yes: bool = False
    """True: the program may save files and resume. False: a trial ends as soon as the program tries to save or
    resume."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Properties that identify a program. A later run with the same properties is a run of the same program."""

    program: str
    """Path of the program's file."""
    model: str | None
    parameters: int | None
    batch: int | None
    device: str
    world_size: int

    @classmethod
    def of(cls, run: Run) -> "Identity":
        """Return the identity of a run's program.

        Bytes of a path that are not valid UTF-8 are escaped, because JSON needs UTF-8.
        """
        return cls(
            program=printable(str(Path(run.directory or "", run.program or ""))),
            model=run.model,
            parameters=run.parameters,
            batch=run.batch,
            device=run.device,
            world_size=run.world_size,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOutcome:
    """Result of a trial: its time, losses and findings, or the reason why no time was measured."""

    steps: int = 0
    """Number of measured steps."""
    seconds: float = 0.0
    """Duration of the measured steps in seconds, without evaluations and checkpoints."""
    losses: tuple[float, ...] = ()
    """Losses of the first calls of `backward`."""
    applied: tuple[str, ...] = ()
    """Names of the changes that changed something in the program, or that the callback's checklist made."""
    why: str | None = None
    """Reason why no time was measured: `SAVES`, `RESUMES` or `FAILED`. None if a time was measured."""
    place: str = ""
    """Line of the program that saves or resumes, or the text of an error."""
    findings: tuple[Finding, ...] = ()
    """Findings of the fit, if the trial is a probe."""
    short: tuple[int, float] | None = None
    """Measured steps, and seconds of all steps, of a probe that was too short for a verdict. None: long enough."""
    own_callback: bool = False
    """True: the program's code itself uses the callback, with its own settings."""
    identity: Identity | None = None

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a step, or None if no step was measured."""
        return self.seconds / self.steps if self.steps else None


def outcome_path(plan_path: Path) -> Path:
    return plan_path.with_suffix(".outcome")


def write(path: Path, content: Plan | TrialOutcome) -> None:
    """Write a plan or an outcome to a file atomically. Several ranks may write the same outcome at once."""
    atomic_file.replace(path, msgspec.json.encode(content))
