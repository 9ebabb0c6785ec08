"""Run a program several times, unchanged and with each suggested remedy: `perf-callbacks try`.

Each trial launches the program once, as under `perf-callbacks run`. It writes its outcome to a file, and exits. Then
all processes of the trial are killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perf_callbacks.kernel.clock import POLL_SECONDS, monotonic, sleep
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.launch import run
from perf_callbacks.trials import TRIAL
from perf_callbacks.trials.plan import FAILED, Changes, Plan, TrialOutcome, outcome_path, write
from perf_callbacks.trials.remedies import candidates, settings
from perf_callbacks.trials.text import BASE, NO_TIME, NOT_APPLIED, TOGETHER, TrialResults, refused
from perf_callbacks.trials.writes import TRACKERS

PATIENCE, LEAST_PATIENCE_SECONDS = 4.0, 120.0
"""A trial hangs after the later of 120 s and four times the duration of the longest earlier trial."""

LAST_LINES = 3

TAIL_BYTES = 65536

LONGEST = 40
"""Of the temporary directory's path. The path of a socket of the program is 60 characters longer."""

SCANS = 10
"""Most searches for a trial's processes. Each finds those that were started during the previous one."""

QUIET = {
    "PERF_CALLBACKS": "1",
    "PERF_CALLBACKS_JOURNAL": "false",
    "PERF_CALLBACKS_REPORT": "false",
    "PERF_CALLBACKS_STALL_AFTER": "off",
    "PERF_CALLBACKS_MEASURE_PEAK": "off",
    "PERF_CALLBACKS_ON_EVENT": "off",
}


class RefusedError(Exception):
    """Raised if the program can't be tried."""


@dataclass(kw_only=True)
class Tries:
    """Runs all trials of a program, with the options of `perf-callbacks try`."""

    command: Sequence[str]
    steps: int
    seconds: float
    rounds: int
    only: Collection[str]
    yes: bool
    cpus: int
    stopped: Callable[[], bool]
    say: Callable[[str], object]
    show: Callable[[float, str], object]

    def __post_init__(self) -> None:
        self.result = TrialResults(program=" ".join(_shown(self.command)))
        self._longest = 0.0
        self._own_callback = False

    def run(self) -> None:
        """Find remedies in a first run, and try them in several rounds. An interrupt doesn't delete earlier results."""
        flag = run.isolating(self.command)
        if flag is not None:
            raise RefusedError(
                f"python {flag} doesn't import sitecustomize, so a trial can't watch what the program writes"
            )
        began = monotonic()
        with tempfile.TemporaryDirectory(prefix="pcb-try-", dir=_near(), ignore_cleanup_errors=True) as scratch:
            self._scratch = Path(scratch)
            try:
                self._probe()
                if self.result.candidates:
                    for number in range(self.rounds):
                        self._round(number)
            except KeyboardInterrupt:
                self.result.interrupted = True
            finally:
                self.result.seconds = monotonic() - began

    def _probe(self) -> None:
        outcome = self._trial({}, probe=True)
        if outcome.why is not None:
            raise RefusedError(refused(outcome))
        self._own_callback, self.result.identity = outcome.own_callback, outcome.identity
        self.result.short = outcome.short
        remedies = self.result.candidates = candidates(outcome, self.only, self.cpus)
        if remedies:
            runs = self.rounds * (len(remedies) + 1 + (len(remedies) > 1))
            minutes = max(1, round(runs * self._longest / 60))
            names = ", ".join([candidate.title for candidate in remedies])
            self.say(f"to try: {names}. {runs} runs of about {self._longest:.0f} s: {minutes} min.")

    def _round(self, number: int) -> None:
        result = self.result
        result.partial = {}
        plans: dict[str, Changes] = {
            BASE: {},
            **{
                candidate.title: {candidate.remedy.name: candidate.value}
                for candidate in result.candidates
                if candidate.title not in result.failed
            },
        }
        if number and result.together and TOGETHER not in result.failed:
            plans[TOGETHER] = self._together()
        names = [*plans]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            self._setting(name, plans[name])
            if BASE in result.failed:
                why = result.failed.pop(BASE)
                raise RefusedError(f"the program as it is failed in round {number + 1}: {why}")
        if not number:
            self._choose_together(result.partial)
            if result.together:
                self._setting(TOGETHER, self._together())
        for name in result.failed:  # a setting that failed in this round has failed in all rounds
            for outcomes in (*result.rounds, result.partial):
                outcomes.pop(name, None)
        result.rounds.append(result.partial)
        result.partial = {}

    def _setting(self, name: str, changes: Changes) -> None:
        result = self.result
        total = self.rounds * (len(result.candidates) + 1 + bool(result.together))
        where = f"round {len(result.rounds) + 1} of {self.rounds}, run {result.launches + 1} of {total}"
        self.show(result.launches / total, f"{where}: {name}")
        outcome = self._trial(changes)
        missing = {*changes} - {*outcome.applied}
        if outcome.why is not None:
            result.failed[name] = refused(outcome)
        elif missing:
            result.failed[name] = NOT_APPLIED
        elif not outcome.step_seconds:
            result.failed[name] = NO_TIME
        else:
            result.partial[name] = outcome

    def _choose_together(self, first: Mapping[str, TrialOutcome]) -> None:
        base = first[BASE].step_seconds or 0.0
        titles = [
            candidate.title
            for candidate in self.result.candidates
            if candidate.title in first and (first[candidate.title].step_seconds or 0.0) <= base
        ]
        self.result.together = tuple(titles) if len(titles) > 1 else ()

    def _together(self) -> Changes:
        return {
            candidate.remedy.name: candidate.value
            for candidate in self.result.candidates
            if candidate.title in self.result.together
        }

    def _trial(self, changes: Changes, *, probe: bool = False) -> TrialOutcome:
        self.result.launches += not probe
        name = "probe" if probe else f"{self.result.launches}"
        scratch = self._scratch
        own = scratch / f"{name}.d"  # a program may refuse to start if files of an earlier trial are there
        for directory in (own / "tmp", own / "output", scratch / "inductor"):
            directory.mkdir(parents=True, exist_ok=True)
        plan = Plan(
            scratch=str(own), changes=changes, steps=self.steps, seconds=self.seconds, probe=probe,
            yes=self.yes,
        )  # fmt: skip
        path = scratch / f"{name}.plan"
        write(path, plan)
        patience = None if probe else max(LEAST_PATIENCE_SECONDS, PATIENCE * self._longest)
        began = monotonic()
        environ = self._environment(path, own, changes, probe=probe)
        try:
            outcome = launched(self.command, path, environ, patience, self.stopped)
        finally:
            shutil.rmtree(own, ignore_errors=True)
        self._longest = max(self._longest, monotonic() - began)
        return outcome

    def _environment(self, path: Path, own: Path, changes: Changes, *, probe: bool) -> dict[str, str]:
        checklist = settings(changes, own_callback=self._own_callback)
        if probe:  # the checklist applies its items except gc; applied items become remedies to try
            checklist = {name: value for name, value in checklist.items() if name.endswith("_GC")}
        return {
            **run.environment(os.environ, reports=False),
            **TRACKERS,
            **QUIET,
            **({} if probe else {"PERF_CALLBACKS_FLOPS": "off"}),
            **checklist,
            "PERF_CALLBACKS_OUTPUT_DIR": str(own / "output"),
            "MLFLOW_TRACKING_URI": (own / "mlruns").as_uri(),
            "TENSORBOARD_LOGGING_DIR": str(own / "output"),
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(path.parent / "inductor"),
            "TMPDIR": str(own / "tmp"),
            TRIAL: str(path),
        }


def _near() -> str | None:
    return "/tmp" if len(tempfile.gettempdir()) > LONGEST and os.access("/tmp", os.W_OK) else None  # noqa: S108


def launched(
    command: Sequence[str],
    path: Path,
    environ: Mapping[str, str],
    patience: float | None,
    stopped: Callable[[], bool],
) -> TrialOutcome:
    """Run the program until it has written its outcome, exits or loses patience, and kill all its processes.

    Raise `KeyboardInterrupt` once `stopped` returns True.
    """
    answer, output = outcome_path(path), path.with_suffix(".out")
    began = monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 the program that the user named
            command,
            env=environ,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while process.poll() is None and not answer.exists():
                if stopped():
                    raise KeyboardInterrupt
                if patience is not None and monotonic() - began > patience:
                    return TrialOutcome(why=FAILED, place=f"no end after {patience:.0f} s")
                sleep(POLL_SECONDS)
        finally:
            kill(process, str(path))
    if answer.exists():
        return msgspec.json.decode(answer.read_bytes(), type=TrialOutcome)
    return TrialOutcome(why=FAILED, place=_without_outcome(process.returncode, output))


def _without_outcome(status: int, output: Path) -> str:
    if status == 0:
        return "the program ended, and made no step with an optimizer of torch in a process that the trial could watch"
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - TAIL_BYTES))
        text = file.read().decode(errors="replace").strip().splitlines()
    return f"the program ended with status {status}: {' / '.join(text[-LAST_LINES:]) or 'no output'}"


def kill(process: "subprocess.Popen[bytes]", plan: str) -> None:
    """Kill the program, its workers and its ranks, even processes in other process groups."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    for _ in range(SCANS):
        others = [*_of_trial(plan)]
        for other in others:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(other, signal.SIGKILL)
        if not others:
            break
    process.wait()


def _of_trial(plan: str) -> Iterator[int]:
    """All processes whose environment names the plan of the trial. This works only on Linux."""
    mark = f"{TRIAL}={plan}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)


def _shown(command: Sequence[str]) -> Sequence[str]:
    return command[1:] if command[0] == sys.executable else [Path(command[0]).name, *command[1:]]
