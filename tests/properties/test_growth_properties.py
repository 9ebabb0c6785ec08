"""However differently ranks fare, they collect at the same steps."""

from functools import partial
from types import SimpleNamespace

import pytest
from collector import FakeGc
from hypothesis import given, settings, strategies as st

from perf_callbacks import PerfConfig
from perf_callbacks.garbage import growth, item as gc_item
from perf_callbacks.garbage.item import ScheduledCollection
from perf_callbacks.kernel.engine.windows import NOTICE
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit
from perf_callbacks.kernel.process import collector

STEPS = 400


class Rank:
    """A process of its own: a collector, who has it, and what is done by it."""

    def __init__(self, patch, danger, delay, interval):
        self.fake, self.owner = FakeGc(), collector.Collector()
        self.at_once = SimpleNamespace(get_count=lambda: (self.fake.young, 0, 0))
        self.patch, self.danger, self.delay = patch, danger, delay
        self.enter()
        at_once = partial(growth.Growth, collect=lambda _: 500_000)  # on this rank alone
        patch.setattr(gc_item, "Growth", lambda memory, young, _: at_once(memory, young))
        config = PerfConfig(gc_interval=interval)
        self.upkeep = ScheduledCollection(Fit(config=config, environment=environment.read(), step=0, memory=dict))
        self.collected = []

    def enter(self):
        self.patch.setattr(collector, "gc", self.fake)
        for module in (gc_item, environment):
            self.patch.setattr(module, "COLLECTOR", self.owner)
        self.patch.setattr(growth, "gc", self.at_once)

    def leave(self):
        self.enter()
        self.upkeep.closed()

    def step(self, number):
        self.enter()
        self.fake.young = 600_000 if number in self.danger else 10
        if number >= self.upkeep.due:
            self.upkeep.step_ended(number)
        self.collected += [(number, generation) for generation in self.fake.collected]
        self.fake.collected.clear()


DANGER = st.sets(st.integers(1, STEPS), max_size=150) | st.builds(
    range, st.integers(1, STEPS), st.integers(1, STEPS), st.integers(1, 3)
)


@settings(max_examples=50)
@given(
    dangers=st.lists(DANGER, min_size=2, max_size=3),
    delays=st.tuples(*[st.integers(0, 99)] * 3),
    interval=st.integers(1, 150),
    window=st.integers(5, 60),
)
def test_ranks_collect_at_the_same_steps_whatever_grows(dangers, delays, interval, window):
    """What each asks for goes with each window; of the least, ranks hear before it holds, each at its own time."""
    with pytest.MonkeyPatch.context() as patch:
        ranks = [Rank(patch, *each, interval) for each in zip(dangers, delays, strict=False)]
        proposed = {}
        for number in range(1, STEPS + 1):
            for rank in ranks:
                rank.step(number)
                end = number - 1 - rank.delay * (NOTICE * window - 2) // 99
                if end in proposed:
                    rank.upkeep.adopted(proposed[end], end + NOTICE * window)
            if number % window == 0:
                proposed[number] = {"gc_interval": min([rank.upkeep.proposals["gc_interval"] for rank in ranks])}
        for rank in ranks:
            rank.leave()
        first, *others = [rank.collected for rank in ranks]
        assert others == [first] * len(others)
        if not any(dangers):
            assert [number for number, _ in first] == [at for at in range(3, STEPS + 1) if at % interval == 0]
