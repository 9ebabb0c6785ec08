"""Watch for stalls: the watchdog's thread checks once a second that steps still end."""

import threading
from dataclasses import replace

from typing_extensions import override

from perf_callbacks.kernel.engine.account import CHECKPOINT, EVALUATION
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.process import stacks
from perf_callbacks.kernel.process.stacks import Stack
from perf_callbacks.kernel.process.watchdog import PERIOD_SECONDS, WATCHDOG
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.kernel.records.summary_parts import StallSummary
from perf_callbacks.kernel.settings.config import LONGEST_TEXT, printable
from perf_callbacks.ranks import exchange
from perf_callbacks.ranks.exchange import Exchange
from perf_callbacks.stalls import workers
from perf_callbacks.stalls.diagnosis import ENDED, MOST_RANKS, RUNNING, STALLED, Note, Patience
from perf_callbacks.stalls.notes import BEATS, NEAREST, StallNotes

ALONE_SECONDS = 8.0
"""Silence of the job's store in a stall after which a rank reports its own position."""

CHANNEL = "stalls"

NOWHERE = Stack((), "", waits=False)
"""The stack can't be read."""

NO_ANSWER = " The other ranks' positions are unknown: the store of the job doesn't answer."


def begin(recorder: Recorder, _context: FitContext) -> "StallWatch | None":
    if recorder.config.stall_after == "off":
        return None
    watch = StallWatch(recorder)
    WATCHDOG.watch(watch)
    return watch


class StallWatch(Observer):
    """In the watchdog's thread, notices that no step ends, reads the training's stack, and reports it once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._engine = recorder.engine
        self._rank = recorder.run.rank
        self._thread = threading.get_ident()
        self.notes = StallNotes()
        self._ranks = exchange.exchange_of(recorder)
        if self._ranks is not None:
            self._ranks.open(CHANNEL, self.notes)
        self._patience: Patience | None = None
        self._left_at: int | None = None
        self._beat_at: float | None = None
        self._doubt = False
        self._stack = NOWHERE
        self._note: Note | None = None
        self._noticed = 0.0
        self._told = self._speaks = False
        self._ended = False
        self._now, self._ticked = 0.0, recorder.clock()  # time of the last tick on the clocks of watchdog and fit
        self._since = 0.0  # time at which the stall began, on the clock of the watchdog
        self._over_at: float | None = None  # time at which the step with the stall ended
        self._where: str | None = None
        self._stalls: list[float] = []  # seconds of each stall that is over
        if recorder.exchanging and self._ranks is not None:  # the rank may hang before the first tick
            self._stack = stacks.of_thread(self._thread) or NOWHERE
            self.notes.say(self._here(RUNNING), 0.0)
            self._ranks.wake()

    @property
    @override
    def due(self) -> int:
        """0 in a stall: `step_ended` is called at the end of the current step, and otherwise never."""
        return 0 if self._note is not None and self._over_at is None else NEVER

    @override
    def step_ended(self, step: int) -> None:
        self._over_at = self._recorder.clock()

    @override
    def summary(self) -> dict[str, StallSummary]:
        seconds, under_way = sum(self._stalls), self._told and not self._ended
        if under_way:
            seconds += self._now - self._since
        count = len(self._stalls) + under_way
        return {"stalls": StallSummary(count=count, seconds=seconds, under_way=under_way, where=self._where)}

    @override
    def loader_left(self, *, exhausted: bool) -> None:
        self._left_at = self._engine.step

    @override
    def closed(self) -> None:
        if not self._ended:
            self._ended = True
            patience, step = self._patience, self._engine.step
            if patience is not None and patience.end():
                self._over("training ended" if step == patience.step else "training goes on")
            self._stack = NOWHERE
            if self._recorder.exchanging:
                self.notes.say(self._here(ENDED), 0.0)

    def tick(self, now: float) -> bool:
        """An error here ends the watch, but measuring goes on."""
        if self._ended:
            return False
        if self._patience is None:
            self._patience = Patience(self._recorder.config.stall_after, self._recorder.run.step, now)
        self._now, self._ticked = now, self._recorder.clock()
        step, spans = self._engine.step, self._engine.open_spans[:]
        longer = bool(spans) or step == self._left_at
        change = self._patience.tick(now, step, spans[-1] if spans else None, longer=longer)
        if change == "over":
            self._over("training goes on")
        elif change == "began":
            stack = stacks.of_thread(self._thread)
            if stack is None:
                self._patience.end()
            else:
                self._begin(self._patience, stack, now, longer=longer)
        if self._recorder.exchanging and self._ranks is not None:
            doubt = self._patience.waited >= self._patience.limit(longer=longer) / 2
            self._share(self._ranks, self._patience.base, now, doubt=doubt)
        if self._note is not None and not self._told:
            self._try_to_tell(self._note, self._now - self._since, now)
        return True

    def _begin(self, patience: Patience, stack: Stack, now: float, *, longer: bool) -> None:
        """The end of a step is noticed up to one tick late: the duration of the stall includes this delay."""
        self._stack, self._since = stack, now - patience.without_step
        unseen = self._ticked - self._engine.tape.step_began() - patience.without_step
        self._since -= 0.0 if longer else max(0.0, min(unseen, PERIOD_SECONDS))
        self._note, self._noticed, self._told, self._over_at = self._here(STALLED), now, False, None
        self._recorder.observers.update_due()

    def _here(self, state: str) -> Note:
        spans, passed = self._engine.open_spans[:], 0.0 if self._patience is None else self._patience.without_step
        stage, since = self._engine.tape.turned()
        if spans:
            name, since = spans[-1]
        else:
            name = "other" if stage in {Stage.UNDECIDED, Stage.ASIDE} else stage.name.lower()
        return Note(
            state=state,
            step=self._engine.step,
            stage=name,
            since_seconds=round(max(0.0, min(self._recorder.clock() - since, passed + PERIOD_SECONDS)), 1),
            spanned=bool(spans),
            waits=self._stack.waits,
            place=self._stack.place,
            left=self._left_at == self._engine.step,
            failure=printable(self._recorder.failure or "")[:LONGEST_TEXT] if state == ENDED else "",
            worker=self._worker() if state == STALLED else "",
        )

    def _worker(self) -> str:
        """Describe the loader's worker for which the training thread waits, if any."""
        worker = workers.awaited(self._thread)
        who = "The training" if self._recorder.run.world_size == 1 else f"Rank {self._rank}"
        return "" if worker is None else workers.sentence(who, *worker)

    def _share(self, ranks: Exchange, patience: float, now: float, *, doubt: bool) -> None:
        """Send this rank's position to the others: now and then while steps end, but at once if a stall begins."""
        note = self._note
        if note is None:
            soon = self._beat_at is not None and now - self._beat_at < patience / BEATS
            if soon and (doubt is self._doubt or self._rank > NEAREST):
                return
            self._stack = stacks.of_thread(self._thread) or NOWHERE
            note = self._here(RUNNING)
        elif now > self._noticed:
            return
        self._beat_at, self._doubt = now, doubt
        self.notes.say(note, patience, doubt=doubt)
        ranks.wake()

    def _try_to_tell(self, note: Note, waited: float, now: float) -> None:
        """Report the stall if this rank is the one to report. If another has reported, only record it."""
        size = self._recorder.run.world_size
        where = f"The training is in {note}." if size == 1 else f"Rank {self._rank} is in {note}."
        where += f" {note.worker}" if note.worker else ""
        if not self._recorder.exchanging:
            self._tell(note, waited, where)
            return
        notes = self.notes
        if notes.told:
            blamed = notes.blamed
            self._tell(note, waited, None if blamed is None else blamed.text)
            for rank, cause in [] if blamed is None else [*blamed.causes.items()][:MOST_RANKS]:
                if rank != self._rank:
                    self._write(rank, cause, ())
        elif now - max(self._noticed, notes.answered_at) > ALONE_SECONDS:
            self._tell(note, waited, where + NO_ANSWER if self._rank <= NEAREST else None)

    def _tell(self, note: Note, waited: float, text: str | None) -> None:
        self._told, self._speaks = True, text is not None
        since = round(note.since_seconds + self._now - self._noticed, 1)  # another rank's evaluation may delay this
        self._write(self._rank, replace(note, since_seconds=since), self._stack.frames)
        self._where = None if text is None else printable(text)
        if text is not None:
            log.warning("perf_callbacks: no step for %.0f s. %s", waited, text)
            self._report(note, f"no step for {waited:.0f} s. {self._where}", waited, under_way=True)

    def _report(self, note: Note, text: str, seconds: float, *, under_way: bool) -> None:
        """Tell the other observers that a stall was reported, or that it has ended."""
        details = {
            "text": text,
            "under_way": under_way,
            "seconds": round(seconds, 1),
            "where": self._where,
            "step": note.step,
            "stage": note.stage,
            "stack": self._stack.frames,
        }
        self._recorder.observers.happened("stall", details)

    def _write(self, rank: int, note: Note, stack: tuple[str, ...]) -> None:
        self._recorder.write(
            Stall(step=note.step, rank=rank, stage=note.stage, since_seconds=note.since_seconds, stack=stack)
        )

    def _over(self, how: str) -> None:
        """Record the duration of a reported stall, and log its end if this rank logged the stall."""
        end = self._recorder.clock() if self._over_at is None else self._over_at
        lost = self._now + end - self._ticked - self._since
        note, first = self._note, self._recorder.run.step  # the first step counts as a mean step in any case
        if note is not None and self._told:
            self._stalls.append(lost)
            if note.step != first and note.stage not in {EVALUATION, CHECKPOINT}:
                self._engine.account.stalled_seconds += lost
            if self._speaks:
                log.warning("perf_callbacks: %s after %.0f s without a step.", how, lost)
                self._report(note, f"{how} after {lost:.0f} s without a step.", lost, under_way=False)
        self._note, self._told, self._speaks, self._over_at = None, False, False, None
        self._beat_at = None
