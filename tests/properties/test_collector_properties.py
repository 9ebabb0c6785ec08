"""Whatever fits ask of the collector, it is as found when they are over."""

import pytest
from collector import FakeGc, put
from hypothesis import given, strategies as st

from perf_callbacks.kernel.process import collector

ACTIONS = st.tuples(
    st.sampled_from(["turn_off", "turn_on", "freeze", "let_go", "collect", "stop"]), st.sampled_from("abc")
)


class AcceleratorSession:
    """Three fits with a claim each, whose steps end until they stop."""

    def __init__(self, owner):
        self.steps = dict.fromkeys("abc", 0)
        self.leases = {name: collector.Lease(owner, lambda name=name: (self.steps[name], 0.1)) for name in "abc"}
        self.stopped = set()

    def do(self, action, name):
        if action == "stop":
            self.stopped.add(name)
        elif action == "collect":
            self.leases[name].collect(2)
        elif name not in self.stopped:
            getattr(self.leases[name], action)()

    def step(self):
        for name in {*"abc"} - self.stopped:
            self.steps[name] += 1


@given(
    enabled=st.booleans(),
    frozen=st.sampled_from([0, 400, 1000, 9000]),
    actions=st.lists(ACTIONS, max_size=30),
    ticks=st.sets(st.integers(0, 29)),
)
def test_the_collector_is_as_found_when_the_last_fit_has_let_go(enabled, frozen, actions, ticks):
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake = put(monkeypatch, FakeGc(enabled=enabled, frozen=frozen))
        found, ours = fake.state, collector.COLLECTOR
        fits = AcceleratorSession(ours)
        for place, (action, name) in enumerate(actions):
            fits.do(action, name)
            fits.step()
            if place in ticks:
                ours.tick(float(place))
            assert ours.automatic == enabled
            assert fake.automatic == (enabled and not ours.off)
        for name in {*"abc"} - fits.stopped:
            fits.leases[name].let_go()
        for late in (100.0, 110.0):
            ours.tick(late)
        assert (fake.state, ours.held) == (found, set())


@given(turns=st.lists(st.sampled_from("ab"), min_size=1, max_size=200))
def test_alternating_fits_collect_no_more_often_than_the_busier(turns):
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake = put(monkeypatch, FakeGc())
        fits = AcceleratorSession(collector.COLLECTOR)
        for name in turns:
            fits.do("turn_off", name)
            fits.do("collect", name)
        fair = turns == ["a", "b"] * (len(turns) // 2)
        assert len(fake.collected) <= (len(turns) // 2 + 1 if fair else len(turns))
        assert len(fake.collected) >= max(1, min(turns.count("a"), turns.count("b")))
