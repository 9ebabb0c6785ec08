"""Sentences about stragglers, in the closing card and as advice."""

import pytest
from summaries import a_summary_of

from perf_callbacks.advice.facts import Facts, Measured
from perf_callbacks.advice.straggler import straggler
from perf_callbacks.stragglers.search import SlowRank
from perf_callbacks.stragglers.text import REMEDIES, lines, slow_rank


def lines_of(of):
    return lines(of.stragglers)


def summary(**changes):
    usual = {
        "run_id": "a", "attempt": 1, "step": 100, "steps": 100, "included_steps": 100, "included_seconds": 100.0,
        "stage_seconds": {"forward_time": 100.0}, "wall_seconds": {"steps": 100.0}, "samples": 1, "tokens": 1,
        "included_samples": 1, "included_tokens": 1, "included_useful_tokens": 1, "total_samples": 1,
        "total_tokens": 1, "gc_collections": None, "gc_seconds": None, "gc_longest": None,
        "compared_steps": 100, "compared_seconds": 100.0, "slowdown": 1.2,
        "straggler_seconds": {"gc": 10.0, "data": 6.2},
        "stragglers": ((3, "gc", 10.0, 38), (0, "data", 6.0, 1), (1, "data", 0.2, 1)),
    }  # fmt: skip
    return a_summary_of(**usual | changes)


def test_the_worst_ranks_are_named_with_cause_cost_and_remedy():
    assert [*lines_of(summary(backward_waiting=0.25))] == [
        f"rank 3 cost the job 10 s of 100 s: garbage collection, 38 pauses; try {REMEDIES['gc']}",
        f"rank 0 cost the job 6 s of 100 s: waiting for data, 1 step; try {REMEDIES['data']}",
        "at most 25% of backward on this rank was waiting for other ranks",
    ]


def test_small_losses_of_many_ranks_are_summed_up():
    many = tuple([(rank, "host", 2.0, 3) for rank in range(8)])
    told = [*lines_of(summary(stragglers=many, straggler_seconds={"host": 30.0}))]
    assert len(told) == 4
    assert told[-1] == "other stragglers cost 24 s"


def test_ranks_that_are_equally_fast_are_said_to_be():
    quiet = summary(stragglers=(), straggler_seconds={}, slowdown=1.0)
    assert [*lines_of(quiet)] == ["no rank was slow for long: 0 s of 100 s lost to stragglers, in 100 steps"]


def test_a_model_that_is_spread_over_ranks_is_said_not_to_be_compared():
    spread = summary(stragglers=(), straggler_seconds={}, compared_model=False)
    assert [*lines_of(spread)][1] == "forward and backward were not compared, because ranks wait for each other there"


def test_a_single_process_has_slow_steps_and_no_slow_rank():
    alone = summary(slowdown=None, stragglers=((0, "data", 6.0, 2),), straggler_seconds={"data": 6.0})
    assert [*lines_of(alone)] == ["slow steps lost 6 s of 100 s: waiting for data, 2 steps"]
    assert [*lines_of(summary(slowdown=None, stragglers=(), straggler_seconds={}))] == []


def test_nothing_is_said_where_nothing_was_compared():
    assert [*lines_of(summary(compared_steps=0))] == []


def test_a_slow_rank_is_described_with_its_causes_while_it_runs():
    slow = SlowRank(rank=3, step=200, steps=100, share=0.12, causes={"data": 0.7, "host": 0.25, "gc": 0.05})
    assert slow_rank(slow) == (
        "rank 3 was slow in the 100 steps up to step 200: its steps take 12% longer than those of a usual rank "
        "(waiting for data 70%, other work on the host 25%). Try more loader workers, or data nearer to the rank."
    )


@pytest.mark.parametrize(
    ("gc", "remedy"), [("observe", 'PerfConfig(gc="sync"), so that'), ("sync", "removing calls of gc.collect()")]
)
def test_the_advice_names_the_worst_rank_and_the_share_of_all(gc, remedy):
    found = straggler(None, Facts(gc=gc), Measured(summary()))
    assert found is not None
    assert (found.cause, found.share) == ("straggler", pytest.approx(0.162))
    assert found.evidence == (
        "The job waited for slow ranks for 16% of its steps, longest for rank 3: garbage collection, 10 s of 100 s"
    )
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize("changes", [{"slowdown": None}, {"stragglers": ()}, {"included_steps": 2}])
def test_the_advice_is_silent_where_no_rank_is_slow(changes):
    assert straggler(None, Facts(), Measured(summary(**changes))) is None
    assert straggler(None, Facts(), None) is None
