"""Gains that `perf-callbacks try` measured, for later runs of the program with the same model, batch and device."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from perf_callbacks.kernel.fit.cache import cache_directory
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records import atomic_file
from perf_callbacks.kernel.records.fit_records import Finding, Run
from perf_callbacks.trials.plan import Identity
from perf_callbacks.trials.remedies import Candidate, of_finding
from perf_callbacks.trials.text import TrialResults

GainInterval = tuple[float, float, float]
"""Speedup as a factor: lower end of its 95 % interval, measured, upper end."""


def gains_path(identity: Identity) -> Path:
    return cache_directory() / f"try-{hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]}.json"


def _key(candidate: Candidate) -> str:
    return f"{candidate.remedy.name} {candidate.value}"


def store(result: TrialResults) -> None:
    """If the file can't be written, nothing is stored."""
    measured = result.gains()
    gains = {
        _key(candidate): (gain.low, gain.factor, gain.high)
        for candidate in result.candidates
        if (gain := measured.get(candidate.title)) is not None and gain.low is not None and gain.high is not None
    }
    if not gains or result.identity is None:
        return
    path = gains_path(result.identity)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.replace(path, msgspec.json.encode(gains))


def of_run(run: Run) -> dict[str, GainInterval]:
    """By change; may be empty."""
    with suppress(OSError, ValueError, msgspec.DecodeError):
        return msgspec.json.decode(gains_path(Identity.from_run(run)).read_bytes(), type=dict[str, GainInterval])
    return {}


def with_gains(findings: Sequence[Finding], gains: Mapping[str, GainInterval]) -> tuple[Finding, ...]:
    return (
        tuple([replace(finding, measured=_gain(finding, gains)) for finding in findings]) if gains else tuple(findings)
    )


def _gain(finding: Finding, gains: Mapping[str, GainInterval]) -> GainInterval | None:
    candidate = of_finding(finding)
    return None if candidate is None else gains.get(_key(candidate))
