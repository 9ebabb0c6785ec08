"""Two runs of the demo's program: without changes, and with the remedy that the first run's verdict names."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perf_callbacks.kernel.clock import POLL_SECONDS, sleep
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.records.fit_records import Finding, Summary
from perf_callbacks.kernel.records.journal_file import files, read
from perf_callbacks.kernel.records.shares import LARGE
from perf_callbacks.report import cards, report_file
from perf_callbacks.report.units import duration

PROGRAM = Path(__file__).with_name("train.py")
"""Each run uses a copy of the file, because a verdict never names a line of an installed package."""

AS_IT_IS, REMEDIED = "as_it_is", "with_remedy"

PATIENCE_SECONDS = 3.0
"""From SIGTERM to the program's end."""

LOOPBACK = {"linux": "lo", "darwin": "lo0"}

_OF_JOBS = ("PERF_CALLBACKS", "SLURM_", "TORCHELASTIC_")
_OF_RANKS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"}
"""Prefixes and names of environment variables that the demo's program must not get."""

ONE_RANK = "train.py tokenizes each sample in the training process, in plain Python (`Snippets.encode`)."
SLOW_RANK = "the samples of rank {} were not tokenized before the training, as those of all other ranks were."


class StoppedError(Exception):
    """Raised if the user wants the demo to end."""


class UnfinishedError(Exception):
    """Raised with a reason if the demo can't go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoRun:
    """Finished run of the demo's program."""

    directory: Path
    options: Sequence[str]
    summary: Summary

    @property
    def step_seconds(self) -> float:
        return self.summary.step_time or 0.0

    @property
    def no_cpu_share(self) -> float:
        return (self.summary.cpu.no_cpu_share if self.summary.cpu is not None else None) or 0.0


@dataclass(kw_only=True, slots=True)
class TwoRuns:
    """Both runs of a demo, and their results so far."""

    directory: Path
    ranks: int
    train: Callable[[Sequence[str]], int]
    say: Callable[[str], object]
    runs: list[DemoRun] = field(default_factory=list)
    finding: Finding | None = None
    report: Path | None = None

    @property
    def fault(self) -> str:
        return ONE_RANK if self.ranks == 1 else SLOW_RANK.format(self.ranks - 1)

    @property
    def gain(self) -> float | None:
        """Step time without the remedy, divided by the step time with it."""
        if len(self.runs) < 2 or not self.runs[1].step_seconds:  # noqa: PLR2004 without and with the remedy
            return None
        return self.runs[0].step_seconds / self.runs[1].step_seconds

    def run(self, seconds: float) -> None:
        """Raise `UnfinishedError` if a run fails, or if its verdict doesn't name the hidden fault."""
        ranks = self.ranks
        several = ["--ranks", str(ranks)] if ranks > 1 else []
        ready = ["--prepared", *map(str, range(ranks - 1))] if ranks > 1 else []
        shutil.copyfile(PROGRAM, self.directory / PROGRAM.name)
        first = self._run_once(AS_IT_IS, [*several, *ready, "--seconds", f"{seconds:g}"])
        finding = self.finding = about_fault(first.summary, ranks)
        if finding is None:
            why = "the training had no CPU for long" if first.no_cpu_share >= LARGE else "see its card above"
            raise UnfinishedError(f"The verdict doesn't name the hidden fault: {why}. The fault: {self.fault}")
        if finding is not first.summary.findings[0]:
            self.say('The verdict names another cause first. The hidden fault is in a line that begins with "also".')
        if not (change := options_of(finding.remedy, ranks)):
            raise UnfinishedError(f"The demo can't apply this remedy: {finding.remedy}.")
        steps = first.summary.steps
        self.say(f"The remedy, by the verdict: {finding.remedy}. The same {steps:,} steps with the remedy:")
        kept = ready if "--prepared" not in change else []
        self._run_once(REMEDIED, [*several, *kept, *change, "--steps", str(steps)])

    def _run_once(self, name: str, options: Sequence[str]) -> DemoRun:
        options = [*options, "--out", name]
        self.say(f"$ python {PROGRAM.name} {' '.join(options)}")
        status = self.train(options)
        directory = self.directory / name
        if status:
            raise UnfinishedError(f"The training ended with exit status {status}.")
        summary = _summary(directory)
        if summary is None:
            raise UnfinishedError(f"The training left no summary in {directory}.")
        self.runs.append(DemoRun(directory=directory, options=options, summary=summary))
        return self.runs[-1]

    def write_report(self) -> Path:
        first, second = [report_file.fits(run.directory) for run in self.runs]
        path = self.report = self.directory / report_file.NAME
        report_file.write(first, 0, path, None, second[-1])
        return path

    def conclusion(self) -> Iterable[str]:
        gain, finding = self.gain, self.finding
        if gain is None or finding is None:
            return
        before, after = [run.step_seconds for run in self.runs]
        yield (
            f"A step took {duration(before)}, and {duration(after)} with the remedy: {gain:.2f}x faster. "
            f"Promised: {cards.promised(finding).lower()}."
        )
        yield f"The fault: {self.fault}"
        if not self.runs[1].summary.long_enough:
            yield "With the remedy, all steps took less than ten seconds, which is too short for a verdict."
        busiest = max(run.no_cpu_share for run in self.runs)
        if busiest >= LARGE:
            users = "loader workers, ranks or other programs"
            yield f"The training had no CPU for up to {busiest:.0%} of its time: {users} used the CPUs."


def about_fault(summary: Summary, ranks: int) -> Finding | None:
    """Prefer a finding whose remedy the demo can apply. With several ranks, its cause is "data" or "straggler"."""
    causes = {"data"} if ranks == 1 else {"data", "straggler"}
    findings = [finding for finding in summary.findings if finding.cause in causes and finding.share is not None]
    return next(
        (finding for finding in findings if options_of(finding.remedy, ranks)), findings[0] if findings else None
    )


def options_of(remedy: str, ranks: int) -> list[str]:
    """Return [] if the program has no option for the remedy.

    >>> options_of("DataLoader(num_workers=2)", 1), options_of("caching prepared samples, or cheaper transforms", 2)
    (['--workers', '2'], ['--prepared', '0', '1'])
    """
    workers = re.search(r"num_workers=(\d+)", remedy)
    if workers is not None:
        return ["--workers", workers[1]]
    if "more loader workers" in remedy:
        return ["--workers", "1"]
    return ["--prepared", *map(str, range(ranks))] if "caching" in remedy else []


def start(directory: Path, options: Sequence[str], stopped: Callable[[], bool], output: int | None = None) -> int:
    """If the user wants to stop, end all ranks and raise `StoppedError`. Without `output`, write to our own output."""
    own = {
        "OMP_NUM_THREADS": "1",  # other threads of torch spin between operations, which counts as CPU time
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",  # torch warns if NumPy is missing, but doesn't need it
        "XDG_CACHE_HOME": str(directory / "cache"),  # empty at first, so that the demo measures the peak
    }
    if sys.platform in LOOPBACK:
        own["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    process = subprocess.Popen(  # noqa: S603 a copy of our own program
        [sys.executable, PROGRAM.name, *options],
        cwd=directory,
        env=_outside_of_jobs(os.environ) | own,
        stdin=subprocess.DEVNULL,
        stdout=output,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends all ranks
    )
    try:
        while process.poll() is None:
            if stopped():
                raise StoppedError
            sleep(POLL_SECONDS)
        return process.returncode
    finally:
        if process.poll() is None:
            _end(process)


def _outside_of_jobs(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables without those of a surrounding job, and without settings of the callback."""
    return {name: value for name, value in variables.items() if name not in _OF_RANKS and not name.startswith(_OF_JOBS)}


def _end(process: "subprocess.Popen[bytes]") -> None:
    if os.name == "nt":
        process.kill()
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_SECONDS)


def _summary(directory: Path) -> Summary | None:
    """Rank 0's last, but no interim summary: a run that ended in order has written its own."""
    with suppress(OSError):
        for journal in files(directory)[:1]:
            records = [entry.record for entry in read(journal)]
            return next((record for record in reversed(records) if isinstance(record, Summary)), None)
    return None
