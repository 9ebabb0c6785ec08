"""Whatever fits ask of the collector, it is as found when they are over."""

import pytest
from collector import FakeGc, put
from hypothesis import given, strategies as st

from perf_callbacks.host.custody import Custody

ACTIONS = st.tuples(
    st.sampled_from(["take", "turn_off", "turn_on", "freeze", "let_go", "overruled"]), st.sampled_from("abc")
)


@given(enabled=st.booleans(), frozen=st.sampled_from([0, 400, 1000, 9000]), actions=st.lists(ACTIONS, max_size=30))
def test_whatever_fits_do_all_is_as_found_when_the_last_has_let_go(enabled, frozen, actions):
    with pytest.MonkeyPatch.context() as monkeypatch:
        fake = put(monkeypatch, FakeGc(enabled=enabled, frozen=frozen))
        found, ours = fake.state, Custody()
        ours._heard_of_forks = True
        for name, holder in actions:
            getattr(ours, name)(holder)
            assert ours.automatic == enabled
        for holder in "abc":
            ours.let_go(holder)
        assert fake.state == found
