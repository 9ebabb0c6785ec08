"""Baseline from a directory of recorded runs. The journal of each run provides the run's first steps."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import isnan
from pathlib import Path

from perf_callbacks.baseline.standing import same
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.fit_records import Run, Steps, Summary
from perf_callbacks.kernel.records.journal_file import files, read as entries
from perf_callbacks.report import machine_load, run_figures, run_list
from perf_callbacks.report.batch_means import Estimate, mean_of_runs
from perf_callbacks.report.history import Attempt
from perf_callbacks.report.run_figures import RunFigures, per
from perf_callbacks.report.series import STAGES, included

MOST_RUNS = 20
"""Largest number of runs in a baseline. The newest runs are taken."""


def read(directory: Path, steps: int, seconds: float, *, besides: str) -> list[RunFigures]:
    """Return figures of the first steps of the newest runs in and below a directory, oldest run first.

    Args:
        directory: Directory to search.
        steps: Least number of measured steps. Runs with fewer measured steps are left out.
        seconds: Least total time of the measured steps. Runs whose measured steps take less time are left out.
        besides: Id of the current run. The current run is left out.
    """
    found = [one for one in _runs(directory, steps, seconds) if one.run_id != besides]
    return sorted(found, key=lambda one: one.started_unix)[-MOST_RUNS:]


def rate_per_device(runs: Sequence[RunFigures], run: Run) -> float | None:
    """Return the mean samples per second and device of runs with the same model and device.

    If the runs differ in their number of devices, only the runs with the smallest number of devices are used. None
    means that there is no such run, or that its rate is unknown.
    """
    alike = [one for one in runs if one.samples_per_second_per_device and same(one, run, ("parameters", "device"))]
    fewest = min([one.devices * one.world_size for one in alike], default=0)
    fewest_runs = [one for one in alike if one.devices * one.world_size == fewest]
    (quiet,) = machine_load.undisturbed([[one.load for one in fewest_runs]])
    return mean_of_runs([Estimate(fewest_runs[place].samples_per_second_per_device or 1.0, 0.0, 2) for place in quiet])


def _runs(directory: Path, steps: int, seconds: float) -> Iterator[RunFigures]:
    for folder in run_list.folders(directory, []):
        for path in [path for path in files(folder) if path.parent == folder][:1]:
            with suppress(OSError):
                figures = _first(path, steps, seconds)
                if figures is not None:
                    yield figures


def _first(path: Path, steps: int, seconds: float) -> RunFigures | None:
    """Read the first measured steps of the first attempt in a journal. Return None if the attempt has too few steps."""
    attempt: Attempt | None = None
    for entry in entries(path):
        if isinstance(entry.record, Run):
            if attempt is not None:
                return None
            attempt = Attempt(entry.record)
        elif isinstance(entry.record, Steps) and attempt is not None:
            attempt.add(entry)
            places = included(attempt, 0, len(attempt.step))
            times = accumulate([attempt.columns["step_time"][place] for place in places])
            enough = next((number for number, spent in enumerate(times, 1) if number >= steps and spent >= seconds), 0)
            if enough:
                return _figures(attempt, places[:enough], path)
    return None


def _figures(attempt: Attempt, places: Sequence[int], path: Path) -> RunFigures | None:
    def total(name: str) -> float | None:
        values = [attempt.columns[name][place] for place in places]
        return None if any(map(isnan, values)) else sum(values)

    seconds = total("step_time")
    if not seconds:
        return None
    beside = interim.read(path, attempt.run)
    summary = beside.record if beside is not None and isinstance(beside.record, Summary) else None
    return replace(
        run_figures.from_records(attempt.run, summary),  # the load of the whole run
        steps=len(places),
        step_seconds=per(seconds, len(places)),
        stage_seconds={name: spent / len(places) for name in STAGES if (spent := total(name)) is not None},
        samples_per_second=per(total("samples"), seconds),
        tokens_per_second=per(total("tokens"), seconds),
    )
