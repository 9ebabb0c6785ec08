"""Record some steps with torch.profiler. A side process reduces each trace to a `profile` record."""

import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from perf_callbacks.kernel.clock import POLL_SECONDS, monotonic, sleep
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import NEVER, PROFILED
from perf_callbacks.kernel.failures import describe, guard, logs
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process import helper_process, torch_profiler
from perf_callbacks.kernel.process.torch_profiler import StepProfiler
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.codec import unpack
from perf_callbacks.kernel.records.fit_records import Record
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.records.rank_records import Straggler
from perf_callbacks.kernel.records.shares import MOST_PART
from perf_callbacks.profiles.module_marks import marks
from perf_callbacks.profiles.reducer import Reducer
from perf_callbacks.profiles.side_process import MOST_BYTES

AUTO, AUTO_STEPS, AUTO_TIMES = "auto", 3, 3  # with `profile="auto"`: steps of a profile, and most profiles of a fit

MOST_NODES = 20_000
"""Autograd graph nodes in a profile; a forward makes about one per operation. torch holds the GIL while it ends a
profile: on a busy CPU 7 s and 1.3 GB for 40,000 nodes, 49 s and 6 GB for 200,000. A GPU's kernels take more of both."""

MOST_TRIES = 3  # an attempt fails if an evaluation or a checkpoint comes in its first step

MOST_SECONDS = 60.0  # seconds after which a profile records no further step

CLOSE_SECONDS = 5.0  # longest wait of a fit's end for the side process

NO_PROPOSAL = 10**12  # larger than every proposal, because all ranks follow the smallest number

PER_TURN = 10**9  # a proposal is one integer: `2 * PER_TURN + 7` is rank 7 in the fit's second profile

PROPOSAL = "profile"

NO_PROFILE = "perf_callbacks: no profile, training goes on: %s."

HINT = "perf_callbacks: `profile` has no effect: %s."


def begin(recorder: Recorder, context: FitContext) -> "ProfileWatch | None":
    setting = recorder.config.profile
    if setting == "off":
        return None
    reason = helper_process.why_not("profiles")
    if recorder.journal_path is None:
        reason = "there is no journal"
    elif setting == AUTO and recorder.config.stragglers == "off":
        reason = "slow steps are not looked for, because `stragglers` is off"
    elif setting == AUTO and recorder.run.world_size > 1 and not recorder.exchanging:
        reason = "the ranks exchange nothing"
    if reason is not None:
        if recorder.run.rank == 0:
            log.warning(HINT, reason)
        return None
    with guard(logs(log.warning, NO_PROFILE)):
        watch = ProfileWatch(recorder, setting, partial(StepProfiler, begin=marks(context.model)))
        WATCHDOG.watch(watch)
        return watch
    return None


class ProfileWatch(Observer):
    """Profiles steps on one rank, and excludes them from the measurements of all ranks.

    With `profile="auto"`, rank 0 proposes a rank. All ranks know before the profile begins, so that none reports the
    profiled steps as slow.
    """

    def __init__(
        self,
        recorder: Recorder,
        setting: str,
        make: Callable[[str], StepProfiler] = StepProfiler,
        reduce: Callable[[], Reducer] = Reducer,
    ) -> None:
        self._recorder, self._make = recorder, make
        self._rank, self._several = recorder.run.rank, recorder.run.world_size > 1
        self._auto = setting == AUTO
        self._first: int | None = None
        """By the trainer's count; None if no profile is planned."""
        self._chosen, self._count = 0, AUTO_STEPS
        if not self._auto:
            self._first, self._count = map(int, setting.split(":"))
        self._proposal, self._turns, self._agreed = NO_PROPOSAL, 0, 0
        self._left = self._tries = 0  # steps still to exclude, and interrupted attempts
        self._profiler: StepProfiler | None = None
        self._most, self._whole, self._at = 0, 0, 0  # the running profile's most steps, complete steps, first step
        self._nodes, self._before = torch_profiler.graph_nodes(), recorder.step
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._began = self._started = recorder.clock()
        self._spent_seconds = 0.0  # in profiled steps, on whichever rank
        self._directory = (recorder.journal_path or Path()).absolute().parent
        self._traces: list[tuple[Path, Path]] = []  # sent to the side process, and not answered
        self._answering = threading.Lock()
        self._profiles: list[Profile] = []
        self._said = False
        self._reducer = reduce() if self._auto or self._rank == self._chosen else None

    @property
    @override
    def due(self) -> int:
        if self._left:
            return 0
        return NEVER if self._first is None else self._first - 1

    @property
    @override
    def proposals(self) -> Mapping[str, int]:
        return {PROPOSAL: self._proposal} if self._auto else {}

    @override
    def adopted(self, least: Mapping[str, int], step: int) -> None:
        value = least.get(PROPOSAL, NO_PROPOSAL)
        turn, rank = divmod(value, PER_TURN)
        if self._auto and value < NO_PROPOSAL and turn > self._agreed:
            self._agreed, self._chosen, self._first, self._tries = turn, rank, step + 1, 0

    @override
    def happened(self, kind: str, details: Mapping[str, Any]) -> None:
        if kind == "straggler" and self._several and self._rank == 0:
            self._propose(int(details["rank"]))

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Straggler) and not self._several:
            self._propose(0)

    def _propose(self, rank: int) -> None:
        idle = self._turns == self._agreed and self._first is None and not self._left
        elapsed = self._recorder.clock() - self._began
        spent = self._spent_seconds * (1 + 1 / max(1, self._turns))  # the next takes as long as the mean so far
        if self._auto and idle and self._turns < AUTO_TIMES and spent <= MOST_PART * elapsed:
            self._turns += 1
            self._proposal = self._turns * PER_TURN + rank

    @override
    def step_began(self) -> None:
        step, engine = self._recorder.step, self._recorder.engine
        if not self._left:
            if self._first is None or step + 1 < self._first or engine.excluded is not None:
                return
            self._first = None
            self._left = self._count + self._several  # the delay after the last step shows in the step that follows
            self._started = self._recorder.clock()
            engine.exclude(PROFILED)
            if self._rank == self._chosen:
                self._start(step + 1)
            return
        counted = engine.excluded is not None
        engine.exclude(PROFILED)
        if self._profiler is not None:
            if counted:
                self._finish()
            else:
                with guard(self._give_up):
                    self._profiler.mark(step + 1)

    @override
    def step_ended(self, step: int) -> None:
        if not self._left:
            return
        self._left -= 1
        if self._profiler is not None:
            self._whole += 1
            late = self._recorder.clock() - self._started > MOST_SECONDS
            if self._whole >= self._most or late or not self._profiler.running:
                self._finish()
        if not self._left:
            self._spent_seconds += self._recorder.clock() - self._started

    @override
    def span_began(self, kind: str, step: int) -> None:
        """End the running profile. If none of its steps has ended, another attempt begins after the current step."""
        again = self._left > 0 and self._left == self._count + self._several
        if self._profiler is not None:
            self._finish()
        if again:
            self._left, self._tries = 0, self._tries + 1
            self._spent_seconds += self._recorder.clock() - self._started
            if self._tries < MOST_TRIES:
                self._first = step + 2
            elif self._rank == self._chosen:
                self._say("an evaluation or a checkpoint comes in each step")

    @override
    def loader_left(self, *, exhausted: bool) -> None:
        if self._profiler is not None and self._whole:
            self._finish()

    @override
    def summary(self) -> dict[str, tuple[Profile, ...]]:
        return {"profiles": tuple([profile.short() for profile in [*self._profiles]])}

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        self._take_answers()
        return self._recorder.active and self._reducer is not None

    @override
    def before_summary(self) -> None:
        deadline = monotonic() + CLOSE_SECONDS
        self._take_answers()
        while self._traces and os.getpid() == self._process and monotonic() < deadline:
            sleep(POLL_SECONDS)
            self._take_answers()
        side, self._reducer = self._reducer, None
        if self._traces:
            self._traces.clear()
            self._say("the fit ended before the trace was reduced; `perf-callbacks profile FILE` does so later")
        if side is not None:
            side.dismiss()

    @override
    def closed(self) -> None:
        self._first, self._left = None, 0
        if self._profiler is not None:
            self._finish()

    def _start(self, step: int) -> None:
        with guard(self._give_up):
            if torch_profiler.foreign():
                self._say("another profiler is active")
                return
            nodes = max(1.0, (torch_profiler.graph_nodes() - self._nodes) / max(1, step - 1 - self._before))
            if nodes > MOST_NODES:
                self._say(f"a step has about {nodes:,.0f} operations in its forward, and at most {MOST_NODES:,} fit")
                return
            self._at, self._whole, self._most = step, 0, min(self._count, int(MOST_NODES / nodes))
            self._thread = threading.get_ident()
            self._profiler = self._make(self._recorder.device.type)
            self._profiler.start(step)

    def _finish(self) -> None:
        """End the recording. A span is open meanwhile, so that the stall watch waits longer."""
        profiler, self._profiler = self._profiler, None
        if profiler is None or os.getpid() != self._process or threading.get_ident() != self._thread:
            return
        spans = self._recorder.engine.open_spans
        span = ("profile", self._recorder.clock())
        spans.append(span)
        try:
            with guard(self._give_up):
                yielded = not profiler.running
                profiler.stop()
                if yielded:
                    self._say("the program began a profiler of its own")
                elif self._whole:
                    self._pass_on(profiler)
        finally:
            spans.remove(span)

    def _pass_on(self, profiler: StepProfiler) -> None:
        side = self._reducer
        if self._recorder.journal_path is None or side is None or side.over:
            raise BrokenPipeError("the side process has ended")
        kept, sent = self._directory / f"profile{self._rank}-{self._at}.json.gz", False
        file, path = tempfile.mkstemp(prefix="perf_callbacks-", suffix=".json")  # torch writes with the GIL: no network
        os.close(file)
        trace = Path(path)
        try:
            profiler.export(trace)
            size = trace.stat().st_size
            if size > MOST_BYTES:
                self._say(f"the trace has {size / 1e6:,.0f} MB, more than {MOST_BYTES / 1e6:.0f} MB")
                return
            side.send(trace, kept, self._at + self._whole - 1)
            sent = True
        finally:
            if not sent:
                trace.unlink(missing_ok=True)
        self._traces.append((trace, kept))

    def _take_answers(self) -> None:
        """Any thread may call this."""
        if os.getpid() != self._process or not self._answering.acquire(blocking=False):
            return
        try:
            with guard(logs(log.warning, NO_PROFILE)):
                side = self._reducer
                for answer in [] if side is None else side.answers():
                    self._take(answer, self._traces.pop(0)[1])
                if self._traces and (side is None or side.over):
                    traces = [trace for trace, _ in self._traces]
                    self._traces.clear()
                    self._say("the side process was killed")
                    for trace in traces:
                        trace.unlink(missing_ok=True)
        finally:
            self._answering.release()

    def _take(self, answer: Mapping[str, Any], kept: Path) -> None:
        profile = unpack(Profile, answer["profile"]) if answer["profile"] else None
        if profile is None:
            self._say(str(answer["trouble"] or "the side process gave no answer"))
        elif profile.timeline == "cpu" and self._recorder.run.timeline == "device":
            self._say("torch.profiler recorded nothing of the device, which another tool may be recording")
        else:
            self._profiles.append(profile)
            self._recorder.write(profile)
        if answer["unkept"]:
            log.warning("perf_callbacks: the trace %s was not kept: %s.", kept.name, answer["unkept"])

    def _give_up(self, error: Exception) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with guard():
                profiler.stop()
        let_pass(error)
        self._say(describe(error))

    def _say(self, reason: str) -> None:
        """Log why there is no profile, once."""
        if not self._said:
            self._said = True
            log.warning(NO_PROFILE, reason)
