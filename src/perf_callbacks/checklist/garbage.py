"""Garbage collection at the same step on all ranks, without what lives long: for `gc` = "sync" and "freeze".

Automatic collections strike each rank at a step of its own, and every rank waits for each of them. After the second
step of a fit, when lazy imports and optimizer states are there, one full collection is made, what is alive is frozen,
and automatic collection is turned off. From there on the step counter alone says when ranks collect.
"""

import gc
import weakref
from collections.abc import Mapping

from perf_callbacks.checklist.item import ALREADY, APPLIED, NOT_APPLICABLE, SKIPPED, Fit
from perf_callbacks.core.config import PerfConfig
from perf_callbacks.core.records import Checklist
from perf_callbacks.host.custody import CUSTODY, OWN_FROZEN
from perf_callbacks.host.environment import Environment
from perf_callbacks.host.upkeep import NEVER

YOUNG, FULL = 1, 2

RARER = 10
"""Full collections are as much rarer than young ones: a young one never frees a cycle that has outlived another."""

BEGIN_AFTER = 2
"""Steps of a fit after which its lazy imports, optimizer states and buckets exist."""

MOST_YOUNG = 500_000
"""Objects since the last collection from which on this rank doesn't wait for the next one."""

GROWTH = 0.1
"""As much more memory than before does the same…"""

LEAST_GROWTH = 256_000_000
"""…if it is as many bytes too."""


class Garbage:
    """The item."""

    slug = "gc"

    def decide(self, environment: Environment, config: PerfConfig) -> Checklist:
        """What is to be done about garbage collection."""
        before = "automatic" if environment.gc_enabled else "not automatic"
        before += f", thresholds {'/'.join(map(str, environment.gc_thresholds))}"
        frozen = environment.gc_frozen >= OWN_FROZEN
        if config.gc not in {"sync", "freeze"}:
            return Checklist(item=self.slug, status=SKIPPED, before=before, why=f"gc={config.gc}")
        if not hasattr(gc, "freeze"):
            return Checklist(item=self.slug, status=NOT_APPLICABLE, why="this interpreter has another collector")
        if config.gc == "sync" and not environment.gc_enabled:
            return Checklist(item=self.slug, status=ALREADY, before=before, why=OTHERS)
        if config.gc == "freeze" and frozen:
            return Checklist(item=self.slug, status=ALREADY, before=before, why=f"{environment.gc_frozen:,} are frozen")
        return Checklist(item=self.slug, status=APPLIED, before=before, after=_after(config, environment), why=WHY)

    def apply(self, fit: Fit) -> "Collecting":
        """Collect by the step counter, from the second step on."""
        return Collecting(fit)


OTHERS = "automatic collection is off: whoever turned it off has plans of their own"
WHY = "ranks that collect at different steps wait for each other; from the second step on"


def _after(config: PerfConfig, environment: Environment) -> str:
    if config.gc == "freeze":
        return "automatic, what lives long frozen"
    if not environment.gc_generational:
        return f"every {config.gc_interval:,} steps"
    return f"every {config.gc_interval:,} steps, full every {config.gc_interval * RARER:,}"


def due_between(before: int, step: int, interval: int) -> int | None:
    """Which collection falls due after one step and not later than another: the same on every rank.

    >>> due_between(99, 100, 100), due_between(999, 1000, 100), due_between(100, 101, 100)
    (1, 2, None)
    """
    if before // interval == step // interval:
        return None
    return YOUNG if before // (interval * RARER) == step // (interval * RARER) else FULL


class Collecting:
    """Collects when the step counter says so, and at once where garbage grows too fast for that."""

    def __init__(self, fit: Fit) -> None:
        self._level = fit.config.gc
        self._interval = fit.config.gc_interval
        self._apart = max(1, self._interval // RARER)
        self._young = YOUNG if fit.environment.gc_generational else FULL
        self._memory, self._aside_of_steps = fit.memory, fit.aside
        self._base: Mapping[str, int] = {}
        self._holder = object()
        self._let_go = weakref.finalize(self, CUSTODY.let_go, self._holder)  # at exit too
        self._first = fit.step + BEGIN_AFTER
        self._last = self._last_full = self._aside = 0
        self._spans: list[str] = []
        self._news: list[Checklist] = []
        self._warned = False
        self._due = self._first

    @property
    def due(self) -> int:
        """The step from whose end on there is something to do: a span that nobody ends does so with its step."""
        return 0 if self._spans else self._due

    def end_step(self, step: int) -> None:
        """A step that is due is about to end."""
        while self._spans:
            self.end_span()
        if step < self._due:
            return
        if not CUSTODY.held_by(self._holder):  # the beginning, or a fit within this one had it meanwhile
            self._begin(step)
        elif CUSTODY.overruled(self._holder):
            self._give_up(SKIPPED, f"somebody turned automatic collection on before step {step}, and it stays on")
        else:
            generation = due_between(self._last, step, self._interval)
            if generation is None:
                self._guard(step)
            else:
                self._collect(generation, step)
            # Garbage that grows fast shows soon after the beginning.
            look = step + min(self._apart, max(1, step - self._first))
            self._due = min((step // self._interval + 1) * self._interval, look)
        self._last = step

    def begin_span(self, kind: str, step: int) -> None:
        """In an evaluation nobody waits for this rank in each step: it may collect by itself."""
        if not self._spans:
            self._aside = step
            if kind == "evaluation":
                self._collect_aside()
            if self._due != NEVER:
                CUSTODY.turn_on(self._holder)
        self._spans.append(kind)

    def end_span(self) -> None:
        """What is left of a checkpoint is garbage."""
        kind = self._spans.pop() if self._spans else None
        if kind is None or self._spans or self._due == NEVER:
            return
        CUSTODY.turn_off(self._holder)
        if kind != "evaluation":
            self._collect_aside()

    def news(self) -> list[Checklist]:
        """What there is to say since the last call."""
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Everything is as it was found. Twice is once."""
        self._due = NEVER
        self._spans.clear()
        self._let_go()

    def _begin(self, step: int) -> None:
        if not CUSTODY.take(self._holder):  # a fit in another thread: there is one collector
            self._due = step + self._interval
            return
        if not CUSTODY.turn_off(self._holder) and self._level == "sync":
            self._give_up(ALREADY, OTHERS)
            return
        with self._aside_of_steps():
            self._collect(FULL, step)
            CUSTODY.freeze(self._holder)
        self._base = self._memory()
        self._due = step + 1
        if self._level == "freeze":
            CUSTODY.turn_on(self._holder)
            self._due = NEVER

    def _give_up(self, status: str, why: str) -> None:
        self.close()
        self._say(status, why)

    def _collect(self, generation: int, step: int) -> None:
        gc.collect(self._young if generation == YOUNG else FULL)
        if generation == FULL:
            self._last_full = step

    def _collect_aside(self) -> None:
        """In time that belongs to no step; not each time where a loop evaluates in each of its steps."""
        if self._due != NEVER and self._aside - self._last_full >= self._apart and CUSTODY.held_by(self._holder):
            self._collect(FULL, self._aside)

    def _guard(self, step: int) -> None:
        """Where this rank is in danger it collects at once. The others keep to their steps, and so does it."""
        young = gc.get_count()[0]
        if young > MOST_YOUNG:
            gc.collect(self._young)
            self._warn(f"{young:,} new objects after step {step}")
            return
        now = self._memory()
        grown = [kind for kind, amount in now.items() if _grown(self._base.get(kind, amount), amount)]
        if grown:
            gc.collect()
            after = self._memory()
            self._warn(f"{grown[0]} memory {now[grown[0]] / 1e6:,.0f} MB after step {step}")
            self._base = {**self._base, **{kind: after[kind] for kind in grown if kind in after}}

    def _warn(self, found: str) -> None:
        if not self._warned:
            self._warned = True
            self._say(APPLIED, f"{found}: collected at once, on this rank alone")

    def _say(self, status: str, why: str) -> None:
        self._news.append(Checklist(item=Garbage.slug, status=status, why=why))


def _grown(before: int, now: int) -> bool:
    return now - before > max(LEAST_GROWTH, GROWTH * before)
