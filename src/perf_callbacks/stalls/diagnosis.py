"""Diagnosis of stalls: `Patience` notices that no step ends any more, and `blame` finds the rank that is the cause."""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from perf_callbacks.kernel.clock import PATIENCE_STEPS
from perf_callbacks.kernel.plural import plural

FIRST_STEPS = 3
"""First steps of a fit that may take unusually long, for example because the model is compiled."""

LONGER = 10
"""Times as long is the limit in the first steps of a fit, in evaluations and in checkpoints."""

LEAST_SECONDS = 60.0
"""By default, a stall is a wait of at least this, and of `PATIENCE_STEPS` times the median step."""

KEPT_STEPS = 64
"""Latest steps for the median duration."""

LONGEST_TICK, SHORT_TICK = 3.0, 1.0
"""If two ticks are further apart, the computer was probably suspended, and only `SHORT_TICK` seconds count."""

MOST_RANKS = 4
"""Ranks that a sentence lists. Further ones are only counted."""

MOST_PLACES = 3
"""Code places that are described. Ranks in others are only counted."""

MISSING = "did its training never begin, or is the callback missing there?"

RUNNING, STALLED, ENDED = "running", "stalled", "ended"

Change = Literal["began", "over"]


class Patience:
    """Decides when a rank has waited too long for the end of a step."""

    def __init__(self, setting: str, first_step: int, now: float) -> None:
        self._auto = setting == "auto"
        self.base = LEAST_SECONDS if self._auto else float(setting)
        """A wait of this length is a stall in an ordinary step."""
        self._first_step = first_step
        self._seen: tuple[int, object] = (first_step, None)
        self._now = self._began = now
        self._step_seconds = 0.0
        self._durations: deque[float] = deque(maxlen=KEPT_STEPS)
        self.waited = 0.0
        """Since the last end of a step, or begin or end of a span; at most `SHORT_TICK` of a suspension."""
        self.stalled = False

    @property
    def step(self) -> int:
        """The last one whose end `tick` has seen."""
        return self._seen[0]

    @property
    def without_step(self) -> float:
        """Seconds of the current wait, including time in which the process or the watchdog's thread did not run."""
        return self._now - self._began

    def limit(self, *, longer: bool) -> float:
        return self.base * LONGER if longer or self._seen[0] - self._first_step < FIRST_STEPS else self.base

    def tick(self, now: float, step: int, span: object, *, longer: bool = False) -> Change | None:
        """Return what has changed, if anything. `span` identifies the span under way; `longer`: it may take long."""
        passed, self._now = now - self._now, now
        passed = passed if passed <= LONGEST_TICK else SHORT_TICK
        self.waited += passed
        self._step_seconds += passed
        if (step, span) == self._seen:
            if not self.stalled and self.waited >= self.limit(longer=longer):
                self.stalled = True
                return "began"
            return None
        done = step - self._seen[0]
        if done > 0:
            self._durations.append(self._step_seconds / done)
            self._step_seconds = 0.0
            if self._auto:
                self.base = max(LEAST_SECONDS, PATIENCE_STEPS * median(self._durations))
        self._seen = step, span
        return self.end()

    def end(self) -> Change | None:
        was, self.stalled = self.stalled, False
        self.waited, self._began = 0.0, self._now
        return "over" if was else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Position of a rank's training thread, as the rank sends it to the other ranks."""

    state: str
    """"running", "stalled" or "ended". "ended" means that the fit of the rank is over."""
    step: int
    """The last that ended."""
    stage: str
    since_seconds: float
    """That the thread has spent in `stage` so far."""
    spanned: bool
    """True: an evaluation or a checkpoint is running."""
    waits: bool
    """True: the thread probably waits for other ranks, in a collective or in a backward."""
    place: str
    """Line of code, or empty if unknown."""
    left: bool = False
    """True: the loop over the data loader has ended after the most recent step. Training may be over."""
    failure: str = ""
    """Exception that ended the fit, in one line."""
    worker: str = ""
    """Sentence about a loader's worker for which the thread waits."""

    def __str__(self) -> str:
        stages = {"other": "other code", "evaluation": "an evaluation", "checkpoint": "a checkpoint"}
        stage = stages.get(self.stage, self.stage)
        return f"{stage}: {self.place}" if self.place else stage


Notes = Mapping[int, Note]
"""The last of each rank."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The ranks that cause a stall, and sentences about all ranks."""

    text: str
    """About the causes and the other ranks."""
    causes: Notes


def undecided(notes: Notes, silent: Collection[int]) -> bool:
    """Return True if the stalled ranks may wait for an evaluation or a checkpoint of another rank."""
    return any([note.spanned and note.state == RUNNING and rank not in silent for rank, note in notes.items()])


def blame(notes: Notes, silent: Collection[int], world_size: int) -> Blame:
    """Find the ranks that are silent, have ended or left the loop or, if all still train, are behind the others."""
    unheard = [rank for rank in range(world_size) if rank not in notes]
    ended = {rank: note for rank, note in notes.items() if note.state == ENDED}
    quiet = {rank: note for rank, note in notes.items() if rank in silent and rank not in ended}
    alive = {rank: note for rank, note in notes.items() if rank not in silent and rank not in ended}
    stuck = {rank: note for rank, note in alive.items() if note.state == STALLED}
    left = {rank: note for rank, note in alive.items() if note.left and note.state == RUNNING}
    behind = {} if quiet or ended or unheard or left else _behind(stuck)
    others = {rank: note for rank, note in stuck.items() if rank not in behind}
    going = len(alive) - len(stuck) - len(left)
    sentences = [
        *_each(quiet, "{who} {is_} silent, last heard of in step {step} in {place}."),
        *([f"{_ranks(unheard)} never reported: {MISSING}"] if unheard else []),
        *_each(ended, "{who} {has} ended the training after step {last}{failure}."),
        *_each(left, "{who} {has} left the training loop after step {last}, and {waits} in {place}."),
        *_each(behind, "{who} {is_} in {place}."),
        *_waiting(others),
        *dict.fromkeys([note.worker for note in (behind or others).values() if note.worker][:MOST_PLACES]),
        *([f"{plural(going, 'rank')} still {'makes' if going == 1 else 'make'} steps."] if going else []),
    ]
    return Blame(" ".join(sentences), {**quiet, **ended, **left, **behind} or others)


def _behind(stuck: Notes) -> Notes:
    """Find the stalled ranks for which the others wait; none if the notes don't show it."""
    last = max([note.step for note in stuck.values()], default=0)
    stages = Counter([note.stage for note in stuck.values()])
    usual = [stage for stage, number in stages.items() if 2 * number > len(stuck)]
    late = {rank: note for rank, note in stuck.items() if note.step < last}
    busy = {rank: note for rank, note in stuck.items() if not note.waits}
    rare = {rank: note for rank, note in stuck.items() if note.stage not in usual} if usual else {}
    return next((some for some in (late, busy, rare) if 0 < len(some) < len(stuck)), {})


def _each(notes: Notes, sentence: str) -> list[str]:
    """Say where ranks are. Ranks in the same place share a sentence."""
    groups: dict[tuple[int, str, str, bool], list[int]] = {}
    for rank, note in sorted(notes.items()):
        groups.setdefault((note.step, str(note), note.failure, note.waits), []).append(rank)
    places = sorted(groups.items(), key=lambda group: (len(group[1]), group[1][0]))
    sentences = []
    for (step, place, failure, waiting), ranks in places[:MOST_PLACES]:
        is_, has, wait = ("is", "has", "waits") if len(ranks) == 1 else ("are", "have", "wait")
        words = {"who": _ranks(ranks), "is_": is_, "has": has, "step": step + 1, "last": step, "place": place}
        reason = f": {failure}" if failure else ""
        sentences.append(sentence.format(**words, failure=reason, waits=wait if waiting else is_))
    rest = sum([len(ranks) for _, ranks in places[MOST_PLACES:]])
    return [*sentences, f"{plural(rest, 'more rank')} elsewhere."] if rest else sentences


def _waiting(notes: Notes) -> list[str]:
    """Say how many ranks wait, and in which stages or at which line of code."""
    if not notes:
        return []
    places = {str(note) for note in notes.values()}
    if len(notes) <= MOST_RANKS and (len(places) > 1 or not all([note.waits for note in notes.values()])):
        return _each(notes, "{who} {is_} in {place}.")
    if len(notes) == 1:
        return [f"Rank {next(iter(notes))} waits in {places.pop()}."]
    if len(places) == 1:
        return [f"{len(notes):,} ranks wait in {places.pop()}."]
    stages = Counter([note.stage for note in notes.values()])
    (first, number), *rest = sorted(stages.items(), key=lambda item: (-item[1], item[0]))
    others_text = "".join([f", {others:,} in {stage}" for stage, others in rest])
    return [f"{plural(number, 'rank')} wait in {first}{others_text}."]


def _ranks(ranks: Sequence[int]) -> str:
    """List ranks by number.

    >>> _ranks([3]), _ranks([1, 2]), _ranks(range(100))
    ('Rank 3', 'Ranks 1 and 2', 'Ranks 0, 1, 2, 3 and 96 more')
    """
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    if len(ranks) <= MOST_RANKS:
        return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"Ranks {', '.join(map(str, ranks[:MOST_RANKS]))} and {len(ranks) - MOST_RANKS:,} more"
