"""The checklist item `gc`: garbage is collected at the same step on all ranks, and long-lived objects are frozen.

Automatic collections come at different steps on different ranks, and all ranks wait for the one that collects. They are
off from the end of a fit's second step, when lazy imports and optimizer states exist. The first full collection freezes
all live objects, so that later ones are cheap; a short fit ends before it.
"""

import weakref
from collections.abc import Mapping

from typing_extensions import override

from perf_callbacks.garbage.growth import Growth
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit.environment import Environment
from perf_callbacks.kernel.fit.item import ALREADY, SKIPPED, ActiveItem, Fit, Item
from perf_callbacks.kernel.process.collector import COLLECTOR, FULL, OWN_FROZEN, Lease
from perf_callbacks.kernel.records.fit_records import APPLIED, STARTUP, Checklist
from perf_callbacks.kernel.settings.config import PerfConfig

YOUNG = 1

RARER = 10  # every tenth collection is full: only a full one frees a cycle that survived a young one

ASKED = "gc_interval"  # name under which ranks exchange the intervals they propose

LEAST_INTERVAL = 10  # shortest interval, in steps, that a rank proposes; only the user can set a shorter one

BEGIN_AFTER = 2  # steps after which lazy imports, optimizer states and gradient buckets exist


SLUG = "gc"


def decide(environment: Environment, config: PerfConfig) -> Checklist:
    before = "automatic" if environment.gc_enabled else "not automatic"
    before += f", thresholds {'/'.join(map(str, environment.gc_thresholds))}"
    frozen = environment.gc_frozen or 0
    if config.gc not in {"sync", "freeze"}:
        return Checklist(item=SLUG, status=SKIPPED, before=before, why=f"gc={config.gc}")
    if config.gc == "sync" and not environment.gc_enabled:
        return Checklist(item=SLUG, status=ALREADY, before=before, why=OTHERS)
    if config.gc == "freeze" and frozen >= OWN_FROZEN:
        return Checklist(item=SLUG, status=ALREADY, before=before, why=f"{frozen:,} are frozen")
    return Checklist(item=SLUG, status=APPLIED, before=before, after=_after(config, environment), why=WHY)


OTHERS = "automatic collection is off: the program has its own plan"
WHY = "no collection interrupts a step, and all ranks collect at the same step"


def _after(config: PerfConfig, environment: Environment) -> str:
    if config.gc == "freeze":
        return "automatic, long-lived objects frozen"
    if not environment.gc_generational:
        return f"every {config.gc_interval:,} steps"
    return f"every {config.gc_interval:,} steps, full every {config.gc_interval * RARER:,}"


def due_between(before: int, step: int, interval: int) -> int | None:
    """Return the generation to collect at `step`, or None if no collection became due after step `before`.

    >>> due_between(99, 100, 100), due_between(999, 1000, 100), due_between(100, 101, 100)
    (1, 2, None)
    """
    if before // interval == step // interval:
        return None
    return YOUNG if before // (interval * RARER) == step // (interval * RARER) else FULL


class ScheduledCollection(ActiveItem):
    """Collects garbage at planned steps, and at once if garbage grows too fast."""

    slug = SLUG

    def __init__(self, fit: Fit) -> None:
        super().__init__()
        self._level = fit.config.gc
        self._interval = self._least = fit.config.gc_interval
        self._young = YOUNG if fit.environment.gc_generational else FULL
        self._lease = Lease(COLLECTOR, fit.progress)
        self._let_go = weakref.finalize(self, self._lease.let_go)  # at exit too
        self._growth = Growth(fit.memory, self._young, self._lease.collect_now)
        self._aside_of_steps = fit.aside
        self._first = fit.step + BEGIN_AFTER
        self._last = self._last_full = self._aside = 0
        self._begun = self._frozen = self._off_before = False
        self._spans: list[str] = []
        self._warned = False
        self._due = self._first
        if self._level != "sync":  # at the first multiple of the interval
            self._due += -self._first % self._interval
        self._agreed: tuple[int, int] | None = None

    @property
    @override
    def due(self) -> int:
        return 0 if self._spans else self._due

    @override
    def step_ended(self, step: int) -> None:
        while self._spans:
            self.span_ended()
        if step < self._due:
            return
        if self._level == "freeze":
            self._freeze(step)
            self._due = NEVER
        elif not self._begun:
            self._begin(step)
        elif not self._overruled(step):
            if self._lease.abandoned and self._lease.turn_off() and self._frozen:  # the step took long
                self._lease.freeze()
            self._keep_to_schedule(step)
        self._last = step

    @override
    def span_began(self, kind: str, step: int) -> None:
        if not self._spans:
            self._aside = step
            self._lease.aside = True
            if kind == "evaluation":
                self._collect_aside()
            self._off_before = self._lease.off
            self._lease.turn_on()
        self._spans.append(kind)

    @override
    def span_ended(self) -> None:
        kind = self._spans.pop() if self._spans else None
        if kind is None or self._spans:
            return
        self._lease.aside = False
        if self._off_before:
            self._lease.turn_off()
        if kind != "evaluation":
            self._collect_aside()

    @property
    @override
    def proposals(self) -> Mapping[str, int]:
        return {ASKED: min(self._least, NEVER)}

    @override
    def adopted(self, least: Mapping[str, int], step: int) -> None:
        pending, _ = self._agreed or (self._interval, step)
        interval = least.get(ASKED, pending)
        if 0 < interval < pending:
            self._agreed = interval, step
            if self._due != NEVER:  # without this line, the next check may come after that step
                self._due = min(self._due, step)

    @override
    def closed(self) -> None:
        self._due = NEVER
        self._spans.clear()
        self._let_go()

    def _begin(self, step: int) -> None:
        if not self._lease.turn_off():
            self._give_up(ALREADY, OTHERS)
            return
        self._begun = True
        self._growth.begin()
        self._first = self._last = step
        self._due = step + 1

    def _freeze(self, step: int) -> None:
        with self._aside_of_steps():
            self._lease.collect(FULL, STARTUP)
            self._lease.freeze()
        self._frozen, self._last_full = True, step
        self._growth.begin()

    def _overruled(self, step: int) -> bool:
        if overruled := self._lease.overruled:
            self._give_up(
                SKIPPED,
                f"the program changed the collector's thresholds before step {step}, and the callback leaves them",
            )
        return overruled

    def _give_up(self, status: str, why: str) -> None:
        self.closed()
        self._say(status, why)

    def _keep_to_schedule(self, step: int) -> None:
        generation = due_between(self._last, step, self._interval)
        if self._agreed is not None and step >= self._agreed[1]:
            (self._interval, _), self._agreed = self._agreed, None
            self._say(APPLIED, f"every {self._interval:,} steps from step {step} on: a rank requested it")
        if generation is not None:
            self._collect(generation, step)
        self._look(step)
        if self._agreed is not None:
            self._due = min(self._due, self._agreed[1])

    def _collect(self, generation: int, step: int) -> None:
        young = generation == YOUNG and self._young == YOUNG
        if young:
            self._lease.collect(YOUNG)
        elif self._frozen:
            self._lease.collect(FULL)
            self._last_full = step
        else:
            self._freeze(step)

    def _collect_aside(self) -> None:
        """Run a full collection in time that belongs to no step, unless the last one is recent."""
        if self._frozen and self._due != NEVER and self._aside - self._last_full >= self._apart:
            self._lease.collect(FULL)
            self._last_full = self._aside

    @property
    def _apart(self) -> int:
        return max(1, self._interval // RARER)

    def _look(self, step: int) -> None:
        relief = self._growth.relieve(step)
        if relief is not None:
            reason, helped = relief
            self._tell_of(reason, helped=helped)
        apart = max(self._apart, self._growth.patience(step))
        self._due = step + min(apart, max(1, step - self._first), self._interval - step % self._interval)

    def _tell_of(self, reason: str, *, helped: bool) -> None:
        asked = self._least
        if helped:
            self._least = min(self._least, max(self._interval // 2, LEAST_INTERVAL))
        if not self._warned:
            self._warned = True
            asks = f"; requested of all ranks: collect every {self._least:,} steps" if self._least < asked else ""
            self._say(APPLIED, f"{reason}: collected at once, only on this rank{asks}")


ITEM = Item(SLUG, decide, ScheduledCollection)
