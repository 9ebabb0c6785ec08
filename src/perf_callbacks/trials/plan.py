"""Files that `perf-callbacks try` and the program exchange: the plan of a trial, and its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from perf_callbacks.kernel.records import atomic_file
from perf_callbacks.kernel.records.fit_records import Finding, Run
from perf_callbacks.kernel.settings.config import printable

SAVES, RESUMES, FAILED = "saves", "resumes", "failed"


Changes = Mapping[str, int | None]
"""The number of each remedy, such as the number of workers, or None."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Plan of a trial, which says what to change and how many steps to measure."""

    scratch: str
    changes: Changes = field(default_factory=dict)
    steps: int = 60
    seconds: float = 10.0
    probe: bool = False
    """The trial only looks for findings, and its time doesn't count."""
    yes: bool = False
    """The program may save files and resume, which otherwise ends the trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Properties by which a later run is a run of the same program."""

    program: str
    model: str | None
    parameters: int | None
    batch: int | None
    device: str
    world_size: int

    @classmethod
    def from_run(cls, run: Run) -> "Identity":
        """Bytes of a path that are not valid UTF-8 are escaped, because JSON needs UTF-8."""
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
    """Result of a trial, or the reason why no time was measured."""

    steps: int = 0
    seconds: float = 0.0
    """Of the measured steps, without evaluations and checkpoints."""
    losses: tuple[float, ...] = ()
    applied: tuple[str, ...] = ()
    """Changes that changed something in the program, or that the callback's checklist made."""
    why: str | None = None
    """`SAVES`, `RESUMES` or `FAILED`; None: a time was measured."""
    place: str = ""
    """Line of the program that saves or resumes, or the text of an error."""
    findings: tuple[Finding, ...] = ()
    short: tuple[int, float] | None = None
    """Measured steps, and seconds of all steps, of a probe that was too short for a verdict. None: long enough."""
    own_callback: bool = False
    """The program's code itself uses the callback, with its own settings."""
    identity: Identity | None = None

    @property
    def step_seconds(self) -> float | None:
        return self.seconds / self.steps if self.steps else None


def outcome_path(plan_path: Path) -> Path:
    return plan_path.with_suffix(".outcome")


def write(path: Path, content: Plan | TrialOutcome) -> None:
    """Write atomically, because several ranks may write the same outcome at once."""
    atomic_file.replace(path, msgspec.json.encode(content))
