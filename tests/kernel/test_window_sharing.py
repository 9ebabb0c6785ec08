"""Proposals of a fit to the other ranks, and what all agree on."""

from dataclasses import replace

import pytest
from fakes import FakeRanks, Fit, a_run, observed_by

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import WATCHED_BLOCK
from perf_callbacks.kernel.records.fit_records import Window


class Asking(Observer):
    """Asks for what it is told to, and keeps in mind what was agreed on and which steps it saw."""

    proposals = watching = None

    def __init__(self, **proposals):
        self.proposals, self.heard, self.seen, self.watching = proposals, [], [], True

    def steps_measured(self, steps):
        self.seen += [step.number for step in steps]

    def adopted(self, least, step):
        self.heard.append((dict(least), step))


WINDOW = Window(
    first_step=1,
    last_step=4,
    steps=3,
    ranks=2,
    seconds=1.0,
    samples=None,
    tokens=None,
    useful_tokens=None,
    asks={"less": 3, "more": 7},
    holds={"less": 12, "more": 20},
)


def steps(fit, count):
    for _ in range(count):
        fit.feed(4)
        fit.step(other=1 / 128)


def test_a_rank_alone_agrees_with_itself_at_once():
    asking = Asking(less=5)
    fit = Fit(observers=observed_by(asking))
    assert asking.heard == [({"less": 5}, 0)]
    steps(fit, WATCHED_BLOCK - 1)
    asking.proposals = {"less": 4}
    assert len(asking.heard) == 1
    steps(fit, 1)
    assert asking.heard[1:] == [({"less": 4}, WATCHED_BLOCK)]


@pytest.mark.parametrize("ranks", [None, FakeRanks(), FakeRanks(window=4)])
def test_several_ranks_agree_on_nothing_before_all_were_heard(ranks):
    asking = Asking(less=5)
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observed_by(asking))
    steps(fit, 3 * WATCHED_BLOCK)
    fit.engine.stop(fit.now)
    assert asking.heard == []


@pytest.mark.parametrize("watching", [True, False])
def test_all_steps_are_seen_once_and_in_order(watching):
    asking = Asking()
    asking.watching = watching
    fit = Fit(observers=observed_by(asking))
    steps(fit, 10)
    fit.engine.row(10)
    steps(fit, 2 * WATCHED_BLOCK)
    fit.engine.stop(fit.now)
    assert asking.seen == ([*range(1, 2 * WATCHED_BLOCK + 11)] if watching else [])


def test_proposals_of_a_rank_go_with_each_window_that_it_offers():
    ranks, asking = FakeRanks(window=4), Asking()
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observed_by(asking))
    for proposals in ({}, {"less": 5}, {"less": 3, "keep": 1}, {"less": 3, "keep": 1}):
        asking.proposals = proposals
        steps(fit, 4)
    assert [(part.window, part.asks) for part in ranks.offered] == [
        (0, {}),
        (1, {"less": 5}),
        (2, {"less": 3, "keep": 1}),
        (3, {"less": 3, "keep": 1}),
    ]


def test_an_agreement_is_heard_once_with_the_step_from_which_it_holds():
    ranks, asking = FakeRanks(window=4), Asking(less=5)
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observed_by(asking))
    steps(fit, 4)
    ranks.latest = WINDOW
    steps(fit, 3)
    assert asking.heard == []
    steps(fit, 13)
    assert asking.heard == [({"less": 3}, 12), ({"more": 7}, 20)]
    ranks.latest = replace(WINDOW, first_step=17, last_step=20, asks={"less": 2}, holds={"less": 32})
    steps(fit, 8)
    assert asking.heard[2:] == [({"less": 2}, 32)]


def test_an_agreement_holds_from_the_same_step_on_all_ranks():
    heard = []
    for late in (1, 2, 3):
        ranks, asking = FakeRanks(window=4), Asking(less=5)
        fit = Fit(a_run(world_size=2), ranks=ranks, observers=observed_by(asking))
        steps(fit, 4 * late)
        ranks.latest = WINDOW
        steps(fit, 8)
        heard.append(asking.heard)
    assert heard == [[({"less": 3}, 12), ({"more": 7}, 20)]] * 3


def test_without_an_exchange_nothing_is_agreed_on():
    ranks, asking = FakeRanks(window=4), Asking(less=5)
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observed_by(asking))
    steps(fit, 4)
    ranks.latest, ranks.window = WINDOW, None
    steps(fit, 2 * WATCHED_BLOCK)
    assert asking.heard == []


def test_the_row_of_a_whole_fit_has_no_rates_of_the_last_window():
    """The window covers other steps than the rates per device beside it."""
    ranks = FakeRanks(window=4)
    fit = Fit(a_run(world_size=2), ranks=ranks)
    for seconds in (1, 1, 1, 1, 9, 9):
        fit.feed(8)
        fit.step(forward=seconds)
    ranks.latest = replace(WINDOW, seconds=3.0, samples=48)
    row, whole = fit.engine.row(fit.number), fit.engine.whole(fit.number)
    assert row["perf/samples_per_second"] == 16.0
    assert row["perf/samples_per_second_per_device"] == whole["perf/run/samples_per_second_per_device"]
    assert "perf/run/samples_per_second" not in whole
