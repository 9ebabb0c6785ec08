"""Part of a trial in the program's process: it counts optimizer steps, collects losses, and ends the process.

It counts with torch's own hook for optimizers, so it needs no trainer and no callback.
"""

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from perf_callbacks.kernel.clock import perf_counter, sleep
from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.trials import TRIAL
from perf_callbacks.trials.plan import FAILED, Identity, Plan, TrialOutcome, outcome_path, write

if TYPE_CHECKING:  # the program imports torch, not we
    from perf_callbacks.kernel.fit.recorder import Recorder

SKIPPED_STEPS, SKIPPED_SECONDS = 10, 1.0
"""Both must be over before steps count, because caches and compilers warm up."""

FEWEST_STEPS = 5
"""If the program ends early, the trial counts only with at least this many measured steps."""

LOSSES = 20

RANKS_WAIT_SECONDS = 600.0
"""A finished rank's longest wait: when rank 0 has ended, `perf-callbacks try` kills all other ranks."""

PROBE_AGAIN_SECONDS = 1.0
"""A probe whose steps are too few for a verdict goes on for this much longer."""


class TrialProcess:
    """Measures a trial, from the steps of the first optimizer that makes a step."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan, self.path = plan, path
        self.changes = plan.changes
        self._process = os.getpid()
        self._optimizer: Callable[[], Any] = type(None)
        self._steps = 0
        self._first = self._began = 0.0
        self._began_step = 0
        self._last = 0.0
        self._spans_before = 0.0
        self._losses: list[Any] = []
        self._seconds = plan.seconds
        self.applied: set[str] = set()
        self.recorder: Callable[[], Recorder | None] = type(None)
        self.own_callback = False
        self._rank = int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)

    @property
    def mine(self) -> bool:
        return os.getpid() == self._process

    @property
    def trains(self) -> bool:
        return self._steps > 0

    def backward(self, loss: Any) -> None:
        if len(self._losses) < LOSSES and loss.numel() == 1 and self.mine:
            self._losses.append(loss.detach().clone())

    def step_ended(self, optimizer: Any) -> None:
        """Count a step of the first optimizer. After the last step of the trial, end the process."""
        if not self.mine:
            return
        if self._optimizer() is not optimizer:
            if self._optimizer() is not None:  # such as the second optimizer of a GAN
                return
            self._optimizer, self._steps, self._began_step = weakref.ref(optimizer), 0, 0
        self._steps += 1
        now = self._last = perf_counter()
        if self._steps == 1:
            self._first = now
        elif not self._began_step:
            if self._steps > SKIPPED_STEPS and now - self._first >= SKIPPED_SECONDS:
                self._began = self._last = self._done()
                self._began_step, self._spans_before = self._steps, self._spans()
        elif self._steps - self._began_step >= self.plan.steps and now - self._began >= self._seconds:
            if self.plan.probe and not self._verdict():
                self._seconds += PROBE_AGAIN_SECONDS
            elif self._rank == 0:
                self._last = self._done()
                self.leave()

    def _done(self) -> float:
        """Wait until the device has done the work of all steps so far, and return the time."""
        from perf_callbacks.kernel.process import device  # noqa: PLC0415 the program has imported torch by now

        device.synchronize()
        return perf_counter()

    def _verdict(self) -> bool:
        recorder = self.recorder()
        summary = recorder.summary if recorder is not None else None
        return summary is None or summary.long_enough

    def _spans(self) -> float:
        recorder = self.recorder()
        return sum(recorder.engine.account.span_seconds.values()) if recorder is not None else 0.0

    def ended(self) -> None:
        """End the process because training is over; with too few steps, the trial has failed.

        All ranks except rank 0 wait until they are killed.
        """
        if not (self.mine and self.trains):
            return
        if self._rank == 0:
            self.leave()
        sleep(RANKS_WAIT_SECONDS)

    def at_exit(self) -> None:
        """After an error, do nothing, so that the program shows the error."""
        if not hasattr(sys, "last_value"):
            self.ended()

    def leave(self, why: str | None = None, place: str = "") -> NoReturn:
        """Write the outcome, and end the process at once. No code of the program runs afterwards."""
        steps = max(0, self._steps - self._began_step) if self._began_step else 0
        if why is None and steps < FEWEST_STEPS:
            why = FAILED
            place = (
                f"the program made only {self._steps} {'step' if self._steps == 1 else 'steps'}, and the first "
                f"{SKIPPED_STEPS}, or {SKIPPED_SECONDS:g} s, don't count"
            )
        outcome = TrialOutcome(why=why, place=printable(place))
        if why is None:
            try:
                outcome = self._outcome(steps)
            except Exception as error:  # noqa: BLE001 the trial reports the error
                let_pass(error)
                outcome = TrialOutcome(why=FAILED, place=describe(error))
        write(outcome_path(self.path), outcome)
        os._exit(0)

    def _outcome(self, steps: int) -> TrialOutcome:
        recorder = self.recorder()
        summary = recorder.summary if self.plan.probe and recorder is not None else None
        short = summary is not None and not summary.long_enough
        return TrialOutcome(
            steps=steps,
            seconds=max(0.0, self._last - self._began - (self._spans() - self._spans_before)),
            losses=tuple([float(loss) for loss in self._losses]),
            applied=tuple(sorted(self.applied)),
            findings=summary.findings if summary is not None else (),
            short=(summary.included_steps, summary.wall_seconds.get("steps", 0.0)) if summary and short else None,
            own_callback=self.own_callback,
            identity=Identity.from_run(recorder.run) if recorder is not None else None,
        )


def current_trial() -> TrialProcess | None:
    if not _PROCESSES:
        trial = None
        if path := os.environ.get(TRIAL):
            trial = TrialProcess(msgspec.json.decode(Path(path).read_bytes(), type=Plan), Path(path))
            atexit.register(trial.at_exit)
        _PROCESSES.append(trial)
    return _PROCESSES[0]


_PROCESSES: list[TrialProcess | None] = []
