"""Gains that `perf-callbacks try` measured, stored for later runs of the same program.

The findings of a later run show the stored gains if the run has the same model, the same batch and the same device.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from perf_callbacks.kernel.fit.cache import cache_directory
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records.fit_records import Finding, Run
from perf_callbacks.trials.plan import Identity
from perf_callbacks.trials.remedies import of_finding
from perf_callbacks.trials.text import TrialResults


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredGain:
    """Measured speedup by a remedy as a factor, with its 95 % interval."""

    remedy: str
    """Name of the remedy."""
    value: int | None
    """Number that belongs to the remedy, such as the number of workers."""
    interval: tuple[float, float, float]
    """Lower end of the interval, the measured factor, and upper end of the interval."""


def _path(identity: Identity) -> Path:
    """Return the path of the file with a program's gains. The path of the program's file identifies the program."""
    program = str(Path(identity.directory or "", identity.program or ""))
    known = replace(identity, program=program, directory=None)
    return cache_directory() / f"try-{hashlib.sha256(msgspec.json.encode(known)).hexdigest()[:16]}.json"


def store(result: TrialResults) -> None:
    """Store the gains of the trials in a file. If the file can't be written, nothing is stored."""
    found = result.gains()
    gains = [
        MeasuredGain(remedy=one.remedy.name, value=one.change.value, interval=(gain.low, gain.factor, gain.high))
        for one in result.candidates
        if (gain := found.get(one.title)) is not None and gain.low is not None and gain.high is not None
    ]
    if not gains or result.identity is None:
        return
    path = _path(result.identity)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(gains))
        part.replace(path)


def of_run(run: Run) -> tuple[MeasuredGain, ...]:
    """Return the gains that trials of a run's program have measured. The result is empty if no trial is known."""
    with suppress(OSError, ValueError, msgspec.DecodeError):
        return msgspec.json.decode(_path(Identity.of(run)).read_bytes(), type=tuple[MeasuredGain, ...])
    return ()


def with_gains(findings: Sequence[Finding], gains: Sequence[MeasuredGain]) -> tuple[Finding, ...]:
    """Return the findings, and add the measured gain of each finding's remedy."""
    return tuple([replace(one, measured=_gain(one, gains)) for one in findings]) if gains else tuple(findings)


def _gain(finding: Finding, gains: Sequence[MeasuredGain]) -> tuple[float, float, float] | None:
    candidate = of_finding(finding)
    if candidate is None:
        return None
    change = candidate.change
    return next((one.interval for one in gains if (one.remedy, one.value) == (change.name, change.value)), None)
