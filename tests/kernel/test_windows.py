"""What each rank did, put together; and nothing else taken for it."""

import json
from dataclasses import replace

import pytest
from jobs.parts import PART, combine
from rows import each_row

from perf_callbacks.kernel.engine.windows import NOTICE, JobSettings, rates, with_holds
from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.kernel.records.fit_records import Window

OTHER = replace(PART, rank=1, seconds=12.25, samples=392, tokens=50_176, asks={"gc_interval": 25})
WINDOW = Window(
    first_step=101,
    last_step=150,
    steps=49,
    ranks=2,
    seconds=12.5,
    samples=792,
    tokens=101_376,
    useful_tokens=None,
    asks={"gc_interval": 25},
)
VERDICT = JobSettings(fit="f1", run_id="r“1”", window=50)
ITEMS = [
    WINDOW,
    replace(WINDOW, missing=2, missing_ranks=(0, 1)),
    VERDICT,
    replace(VERDICT, window=None),
    replace(VERDICT, directory="/out"),
]


def test_a_window_sums_all_ranks_over_the_time_of_the_slowest():
    assert combine([PART, OTHER]) == WINDOW


@pytest.mark.parametrize(
    ("asked", "common"),
    [
        ([{}, {}, {}], {}),
        ([{"less": 3}, {"less": 2}, {"less": 4}], {"less": 2}),
        ([{"less": 3}, {}, {"less": 4}], {}),
        ([{"less": 3, "keep": 1}, {"keep": 0, "less": 3}, {"keep": 1, "more": 7, "less": 9}], {"keep": 0, "less": 3}),
    ],
)
def test_what_every_rank_asks_for_is_asked_for_as_by_those_who_want_least(asked, common):
    """What one of them does not ask for none of them gets, also not by chance of who comes first."""
    parts = [replace(PART, rank=rank, world_size=3, data_parallel=1, asks=asks) for rank, asks in enumerate(asked)]
    for some in (parts, parts[::-1], [parts[1], parts[2], parts[0]]):
        assert combine(some).asks == common


@pytest.mark.parametrize("name", ["samples", "tokens", "useful_tokens"])
def test_what_one_rank_does_not_know_nobody_knows(name):
    known = [replace(part, useful_tokens=10) for part in (PART, OTHER)]
    assert getattr(combine(known), name) is not None
    assert getattr(combine([known[0], replace(known[1], **{name: None})]), name) is None


def test_samples_that_several_ranks_go_through_together_count_once():
    ranks = [replace(PART, rank=rank, world_size=6, data_parallel=3, samples=10 + rank // 2) for rank in range(6)]
    assert combine(ranks).samples == 10 + 11 + 12
    assert combine([*ranks[:5], replace(ranks[5], samples=13)]).samples is None


@each_row(
    "parts",
    [
        [],
        [PART],
        [PART, PART],
        [PART, OTHER, OTHER],
        [PART, replace(OTHER, rank=2)],
        [PART, replace(OTHER, steps=48)],
        [PART, replace(OTHER, window=3)],
        [PART, replace(OTHER, length=51)],
        [PART, replace(OTHER, world_size=3)],
        [PART, replace(OTHER, data_parallel=1)],
        [replace(part, steps=0, seconds=0.0) for part in (PART, OTHER)],
    ],
)
def test_there_is_no_window_if_ranks_are_missing_or_count_different_things(parts):
    assert combine(parts) is None


def test_rates_are_amounts_over_seconds_and_the_unknown_is_left_out():
    assert rates(WINDOW) == {"samples_per_second": 792 / 12.5, "tokens_per_second": 101_376 / 12.5}
    assert rates(replace(WINDOW, useful_tokens=0))["useful_tokens_per_second"] == 0
    assert rates(replace(WINDOW, seconds=0.0)) == {}


@each_row("item", ITEMS)
def test_what_ranks_hand_each_other_makes_the_round_trip(item):
    assert unpack(type(item), pack(item)) == item


def test_a_request_holds_some_windows_later_and_from_then_on():
    first = with_holds(WINDOW, None)
    assert first.holds == {"gc_interval": 150 + NOTICE * 50}
    second = with_holds(replace(WINDOW, first_step=151, last_step=200, asks={"gc_interval": 25, "profile": 1}), first)
    assert second.holds == {"gc_interval": 150 + NOTICE * 50, "profile": 200 + NOTICE * 50}
    third = with_holds(replace(WINDOW, first_step=201, last_step=250, asks={"gc_interval": 10}), second)
    assert third.holds == {"gc_interval": 250 + NOTICE * 50}


@each_row("item", ITEMS)
def test_what_is_torn_anywhere_is_nothing(item):
    line = pack(item)
    assert [unpack(type(item), line[:cut]) for cut in range(len(line))] == [None] * len(line)
    assert [unpack(type(item), line[cut:]) for cut in range(1, len(line) + 1)] == [None] * len(line)


def test_what_is_no_verdict_is_nothing():
    settings = {"fit": "f", "run_id": "r", "window": 50, "directory": None, "signals": True}
    assert unpack(JobSettings, json.dumps(settings)) == JobSettings(fit="f", run_id="r", window=50, signals=True)
    for wrong in (
        *[{"window": window} for window in (0, -1, True, 2.0, "50")],
        *[{"run_id": 1}, {"fit": None}, {"directory": 1}, {"directory": ["/out"]}, {"signals": 1}],
    ):
        assert unpack(JobSettings, json.dumps(settings | wrong)) is None
    for line in ("", "[]", "{}", "null", '["f","r",50,null,true]', '{"fit":"f","run_id":"r"}'):
        assert unpack(JobSettings, line) is None
