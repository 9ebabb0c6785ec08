"""Fits with a trial of a checklist item, driven by hand as a recorder and ranks drive them."""

from random import Random

from perf_callbacks.kernel.engine.steps import WATCHED_BLOCK, Step
from perf_callbacks.kernel.engine.windows import NOTICE
from perf_callbacks.kernel.fit.item import SKIPPED, ActiveItem
from perf_callbacks.kernel.records.fit_records import Checklist

LATE = 5
"""Steps that a device is behind."""


class Switch(ActiveItem):
    """An item that can be tried, and keeps in mind what it is told."""

    def __init__(self, slug="switch"):
        super().__init__()
        self.slug, self.going, self.alive, self.told = slug, True, True, []

    @property
    def turns(self):
        return self.alive

    @property
    def boundaries(self):
        return [what[1:] for what in self.told if what[0] == "turn"]

    def hold(self):
        self.told.append(("hold",))
        self.going = False

    def turn(self, step, *, done):
        self.told.append(("turn", step, done))
        self.going = done

    def keep(self, step):
        self.told.append(("keep", step))
        self.going = True

    def step_ended(self, step):
        self.told.append(("step_ended", step))

    def span_began(self, kind, step):
        self.told.append(("span_began", kind, step))

    def span_ended(self):
        self.told.append(("span_ended",))

    def closed(self):
        self.told.append(("closed",))
        self.going = False
        super().closed()

    def give_up(self):
        self.closed()
        self.alive = False
        self._say(SKIPPED, "enough of it")


class Thing:
    """The item of the checklist that applies one."""

    def __init__(self, applied):
        self.slug, self.applied = applied.slug, applied

    def decide(self, environment, config):
        return Checklist(item=self.slug, status="applied", before="so", after="otherwise", why="because")

    def apply(self, fit):
        return self.applied


def noisy(saves, *, seed=0):
    """Seconds of a step, fewer by a tenth of that while it `saves`."""
    random = Random(seed)
    return lambda _: random.gauss(0.1, 0.005) - 0.01 * saves()


class StageTracker:
    """Steps of one rank. In blocks they are seen, some steps late."""

    def __init__(self, upkeep, seconds, rows=None):
        """`rows` are those that the upkeep writes; without any it is asked for them."""
        self.upkeep, self.seconds = upkeep, seconds
        self.number, self.steps, self.rows = 0, [], [] if rows is None else rows
        self.news = upkeep.news if rows is None else list
        self.before_end = lambda number: None

    def step(self):
        self.number += 1
        self.steps.append(Step(self.number, None, *[None] * 4, 0.0, 0.0, (self.seconds(self.number),)))
        self.before_end(self.number)
        if self.number >= self.upkeep.due:
            self.upkeep.step_ended(self.number)
        if self.number % WATCHED_BLOCK == 0:
            seen, self.steps = self.steps[:-LATE], self.steps[-LATE:]
            self.upkeep.steps_measured(seen, [])
        self.rows += self.news()

    def go(self, until):
        """Alone: what is asked for is agreed on at once."""
        while self.number < until:
            self.step()
            if self.number % WATCHED_BLOCK == 0:
                self.upkeep.agreed(self.upkeep.asks, self.number)
        return self


def go_together(courses, until, *, heard_late=lambda rank: 0):
    """Ranks hear what all ask for, each with the step in which it hears of it; and agree on when it holds."""
    windows = []
    for number in range(courses[0].number + 1, until + 1):
        for rank, course in enumerate(courses):
            course.step()
            for said, asks in windows:
                if number == said + 1 + heard_late(rank):
                    course.upkeep.agreed(asks, said + NOTICE * WATCHED_BLOCK)
        if number % WATCHED_BLOCK == 0:
            asked = [course.upkeep.asks for course in courses]
            common = set.intersection(*[{*asks} for asks in asked])
            windows.append((number, {name: min([asks[name] for asks in asked]) for name in common}))
