"""Parts of all ranks, put together; and nothing else is taken for them."""

import json
from dataclasses import replace

import pytest
from jobs.parts import PART, combine
from rows import each_row

from perf_callbacks.kernel.engine.windows import NOTICE, JobSettings, rates, with_holds
from perf_callbacks.kernel.records.codec import pack, unpack

OTHER = replace(PART, rank=1, seconds=12.25, samples=392, tokens=50_176, asks={"gc_interval": 25})
WINDOW = combine([PART, OTHER])
VERDICT = JobSettings(fit="f1", run_id="r“1”", window=50)
ITEMS = [
    WINDOW,
    replace(WINDOW, missing=2, missing_ranks=(0, 1)),
    VERDICT,
    replace(VERDICT, window=None),
    replace(VERDICT, directory="/out"),
]


@each_row(
    ("asked", "common"),
    [
        ([{}, {}, {}], {}),
        ([{"less": 3}, {"less": 2}, {"less": 4}], {"less": 2}),
        ([{"less": 3}, {}, {"less": 4}], {}),
        ([{"less": 3, "keep": 1}, {"keep": 0, "less": 3}, {"keep": 1, "more": 7, "less": 9}], {"keep": 0, "less": 3}),
    ],
)
def test_a_window_asks_for_the_least_that_each_rank_asks_for(asked, common):
    parts = [replace(PART, rank=rank, world_size=3, data_parallel=1, asks=asks) for rank, asks in enumerate(asked)]
    for some in (parts, parts[::-1], [parts[1], parts[2], parts[0]]):
        assert combine(some).asks == common


@pytest.mark.parametrize("name", ["samples", "tokens", "useful_tokens"])
def test_an_amount_that_a_rank_does_not_know_is_unknown(name):
    known = [replace(part, useful_tokens=10) for part in (PART, OTHER)]
    assert getattr(combine(known), name) is not None
    assert getattr(combine([known[0], replace(known[1], **{name: None})]), name) is None


def test_samples_on_which_ranks_that_share_them_disagree_are_unknown():
    ranks = [replace(PART, rank=rank, world_size=4, data_parallel=2, samples=10 + rank // 2) for rank in range(4)]
    assert combine(ranks).samples == 10 + 11
    assert combine([*ranks[:3], replace(ranks[3], samples=12)]).samples is None


@each_row(
    "parts",
    [
        [],
        [PART, replace(OTHER, rank=2)],
        [PART, replace(OTHER, steps=48)],
        [PART, replace(OTHER, window=3)],
        [PART, replace(OTHER, length=51)],
        [PART, replace(OTHER, world_size=3)],
        [PART, replace(OTHER, data_parallel=1)],
        [replace(part, steps=0, seconds=0.0) for part in (PART, OTHER)],
    ],
)
def test_parts_of_missing_or_unlike_ranks_make_no_window(parts):
    assert combine(parts) is None


def test_rates_are_amounts_over_seconds_and_the_unknown_is_left_out():
    assert rates(WINDOW) == {"samples_per_second": 792 / 12.5, "tokens_per_second": 101_376 / 12.5}
    assert rates(replace(WINDOW, useful_tokens=0))["useful_tokens_per_second"] == 0
    assert rates(replace(WINDOW, seconds=0.0)) == {}


@each_row("item", ITEMS)
def test_messages_between_ranks_make_the_round_trip(item):
    assert unpack(type(item), pack(item)) == item


def test_a_request_holds_some_windows_later_and_from_then_on():
    first = with_holds(WINDOW, None)
    assert first.holds == {"gc_interval": 150 + NOTICE * 50}
    second = with_holds(replace(WINDOW, first_step=151, last_step=200, asks={"gc_interval": 25, "profile": 1}), first)
    assert second.holds == {"gc_interval": 150 + NOTICE * 50, "profile": 200 + NOTICE * 50}
    third = with_holds(replace(WINDOW, first_step=201, last_step=250, asks={"gc_interval": 10}), second)
    assert third.holds == {"gc_interval": 250 + NOTICE * 50}


@each_row("item", ITEMS)
def test_a_message_that_is_torn_anywhere_is_nothing(item):
    line = pack(item)
    assert [unpack(type(item), line[:cut]) for cut in range(len(line))] == [None] * len(line)
    assert [unpack(type(item), line[cut:]) for cut in range(1, len(line) + 1)] == [None] * len(line)


def test_settings_with_a_wrong_value_are_nothing():
    settings = {"fit": "f", "run_id": "r", "window": 50, "directory": None, "signals": True}
    assert unpack(JobSettings, json.dumps(settings)) == JobSettings(fit="f", run_id="r", window=50, signals=True)
    for wrong in (
        *[{"window": window} for window in (0, -1, True, 2.0, "50")],
        *[{"run_id": 1}, {"fit": None}, {"directory": 1}, {"directory": ["/out"]}, {"signals": 1}],
    ):
        assert unpack(JobSettings, json.dumps(settings | wrong)) is None
    for line in ("", "[]", "{}", "null", '["f","r",50,null,true]', '{"fit":"f","run_id":"r"}'):
        assert unpack(JobSettings, line) is None
