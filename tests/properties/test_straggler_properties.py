"""Laws of the search for stragglers."""

from dataclasses import replace

import pytest
import traces
from hypothesis import given, settings, strategies as st

from perf_callbacks.stragglers.search import Stragglers

FAULTS = st.lists(
    st.tuples(
        st.integers(1, 40), st.integers(0, 3), st.sampled_from(["gc", "data", "steal", "host"]), st.floats(0.1, 3)
    ),
    max_size=8,
)
RUNS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1000),
        "noise": st.floats(0, 0.1),
        "ragged": st.sampled_from([0.0, 0.3]),
        "faults": FAULTS,
        "slow": st.none() | st.tuples(st.integers(0, 3), st.sampled_from(["data", "host"]), st.floats(0, 1)),
        "also": st.none() | st.tuples(st.integers(0, 3), st.sampled_from(["data", "host"]), st.floats(0, 1)),
        "pipeline": st.booleans(),
    }
)


def run(change=lambda signals: signals, order=range(4), **kwargs):
    """Search four ranks of which two may be slow, in two pipeline stages or in none."""
    also, pipeline = kwargs.pop("also"), kwargs.pop("pipeline")
    if also is not None:
        rank, cause, seconds = also
        hit = {(step, at): (name, lost) for step, at, name, lost in kwargs["faults"]}
        more = {(step, rank): (cause, seconds) for step in range(1, 41)}
        kwargs = {**kwargs, "faults": [(*key, *one) for key, one in (more | hit).items()]}
    roles = {order[rank]: {"pp": rank // 2, "dp": rank % 2} for rank in range(4)} if pipeline else None
    stragglers = Stragglers()
    told = []
    for first, signals in traces.windows(4, 40, length=20, **kwargs):
        told += stragglers.window(range(first, first + 20), change(signals), roles)
    return told, stragglers


@settings(max_examples=40)
@given(RUNS, st.sampled_from([0.25, 2.0, 64.0]))
def test_the_verdict_is_the_same_if_time_is_scaled(kwargs, factor):
    def scaled(signals):
        return {
            rank: {name: [seconds * factor for seconds in column] for name, column in columns.items()}
            for rank, columns in signals.items()
        }

    told, plain = run(**kwargs)
    again, slower = run(scaled, **kwargs)
    assert again == [replace(one, seconds_lost=one.seconds_lost * factor) for one in told]
    assert slower.slow == plain.slow
    for name in ("uneven_batches_seconds", "uneven_stages_seconds", "chance_seconds"):
        assert getattr(slower, name) == getattr(plain, name) * factor
    assert slower.slowdown == plain.slowdown


@settings(max_examples=40)
@given(RUNS, st.permutations(range(4)))
def test_the_verdict_is_the_same_if_ranks_are_relabelled(kwargs, order):
    kwargs = {**kwargs, "noise": max(kwargs["noise"], 0.001)}  # ranks that are equally slow can't be told apart

    def relabelled(signals):
        return {order[rank]: columns for rank, columns in signals.items()}

    told, plain = run(**kwargs)
    again, other = run(relabelled, order, **kwargs)
    assert {(one.step, one.rank, frozenset(one.ranks), one.cause, one.steps) for one in again} == {
        (one.step, order[one.rank], frozenset([order[rank] for rank in one.ranks]), one.cause, one.steps)
        for one in told
    }
    assert [slow.rank for slow in other.slow] == [order[slow.rank] for slow in plain.slow]
    assert other.slowdown == pytest.approx(plain.slowdown)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(0, 0.02), st.sampled_from([0.0, 0.1, 0.3]))
def test_quiet_ranks_lose_nothing(seed, ranks, noise, ragged):
    stragglers = Stragglers()
    for first, signals in traces.windows(ranks, 100, seed=seed, noise=noise, ragged=ragged):
        assert stragglers.window(range(first, first + 50), signals) == []
    assert not stragglers.causes


@settings(max_examples=40)
@given(RUNS)
def test_no_more_is_lost_than_the_steps_took(kwargs):
    told, stragglers = run(**kwargs)
    assert all(one.seconds_lost >= 0 for one in told)
    assert sum(stragglers.causes.values()) <= stragglers.seconds
    assert stragglers.uneven_seconds <= stragglers.seconds


SPELLS = st.fixed_dictionaries(
    {
        "cause": st.sampled_from(["data", "steal", "host"]),
        "seconds": st.floats(0.2, 1),
        "first": st.integers(21, 60),  # after a window in which ranks lead each other by chance
        "steps": st.integers(57, 75),
        "faults": st.lists(
            st.tuples(st.integers(1, 140), st.sampled_from(["gc", "data", "steal", "host"]), st.floats(0.5, 3)),
            max_size=5,
        ),
    }
)


@settings(max_examples=40)
@given(
    SPELLS,
    st.fixed_dictionaries({"ranks": st.integers(2, 5), "seed": st.integers(0, 10**6), "noise": st.floats(0, 0.03)}),
)
def test_the_loss_is_the_extra_time_of_steps_whenever_a_rank_is_slow(spell, kwargs):
    slow = dict.fromkeys(range(spell["first"], spell["first"] + spell["steps"]), (1, spell["cause"], spell["seconds"]))
    # A fault of rank 0 within the spell may cut the spell of rank 1 into parts that are too short to be found.
    hit = {**{step: (0, cause, seconds) for step, cause, seconds in spell["faults"]}, **slow}
    stragglers, took = Stragglers(), 0.0
    for _, signals in traces.windows(steps=140, length=20, **kwargs):
        took -= sum(signals[0]["step"])
    for first, signals in traces.windows(
        steps=140, length=20, faults=[(step, *one) for step, one in hit.items()], **kwargs
    ):
        took += sum(signals[0]["step"])
        stragglers.window(range(first, first + 20), signals)
    assert sum(stragglers.causes.values()) == pytest.approx(took, rel=0.1)
