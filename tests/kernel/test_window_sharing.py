"""Windows of a rank: its parts, each whole or not there; its proposals, and what all ranks agree on."""

import math
from dataclasses import replace

import pytest
from fakes import FakeRanks, Fit, a_run, observed_by
from rows import each_row

from perf_callbacks.kernel.engine import engine
from perf_callbacks.kernel.engine.observer import Observer, Observers
from perf_callbacks.kernel.engine.stages import STAGES
from perf_callbacks.kernel.engine.steps import BLOCK, WATCHED_BLOCK, Columns, Step
from perf_callbacks.kernel.engine.window_sharing import MOST_STEPS, WindowSharing
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


class OwnSeconds(Observer):
    """Signals of some steps, by their numbers."""

    def window_part(self, steps):
        return {"own": [number / 2 if number != 6 else None for number in steps.number]}


class OtherSeconds(Observer):
    def window_part(self, steps):
        return {"other": [seconds[-1] for seconds in zip(*steps.stages, strict=True)]}


def step(number, excluded=None):
    return Step(number, excluded, number, 10 * number, None, None, 0.0, 0.0, [0.5] * len(STAGES))


def parts_of(*, after=0, length=None):
    run = a_run(step=after, world_size=2)
    parts = WindowSharing(run, lambda _record: None, observed_by(OwnSeconds()), data_parallel=2)
    parts.use(length)
    return parts


def complete(parts, steps):
    parts.complete.clear()
    parts.add(Columns.from_steps(steps))
    return parts.complete


@each_row(
    ("after", "moves", "windows"),
    [
        (0, [(3, 1, 2), (3, 3, 7), (3, 8, 9)], [(0, 3, 6), (1, 3, 15), (2, 3, 24)]),
        (4, [(3, 5, 9)], [(1, 2, 11), (2, 3, 24)]),  # the fit began within a window
        (0, [(None, 1, 1), (3, 2, 6)], [(1, 3, 15)]),  # the length came too late for the first window
        (0, [(None, 1, 2), (3, 3, 6)], [(1, 3, 15)]),
        (0, [(None, 1, 3), (3, 4, 6)], [(1, 3, 15)]),  # and in time for the second
        (0, [(4, 1, 5), (3, 6, 9)], [(0, 4, 10), (2, 3, 24)]),  # the length changed within a window
        (0, [(3, 1, 5), (4, 6, 12)], [(0, 3, 6), (2, 4, 42)]),
        (0, [(10, 1, 5), (4, 6, 12)], [(2, 4, 42)]),
    ],
)
def test_a_part_holds_all_steps_of_its_window_or_is_left_out(after, moves, windows):
    parts = parts_of(after=after)
    for length, first, last in moves:
        parts.use(length)
        parts.add(Columns.from_steps([step(number) for number in range(first, last + 1)]))
    assert [(part.window, part.steps, part.samples) for part in parts.complete] == windows


def test_the_first_window_is_offered_as_soon_as_it_is_over():
    ranks = FakeRanks(window=2)
    fit = Fit(a_run(world_size=2), ranks=ranks)
    for _ in range(5):
        fit.feed(4, 32)
        fit.step(other=1)
    assert [(part.window, part.steps, part.seconds, part.samples, part.tokens) for part in ranks.offered] == [
        (0, 1, 1.0, 4, 32),  # without the first step, which is excluded
        (1, 2, 2.0, 8, 64),
    ]


def test_a_length_heard_of_while_training_counts_from_the_next_window(monkeypatch):
    monkeypatch.setattr(engine, "FLUSH_SECONDS", math.inf)  # what ranks said is looked at with each full block
    ranks = FakeRanks()
    fit = Fit(a_run(world_size=2), ranks=ranks)
    for number in range(1, BLOCK + 9):
        ranks.window = 4 if number > 30 else None  # seen with the block of steps that is full at 256
        fit.feed(number)
        fit.step(other=0.125)
    assert [(part.window, part.steps, part.samples) for part in ranks.offered] == [
        (window, 4, sum(range(4 * window + 1, 4 * window + 5))) for window in (64, 65)
    ]


def test_a_window_of_other_ranks_is_in_the_journal_once_and_in_the_rows():
    ranks = FakeRanks(window=2)
    fit = Fit(a_run(world_size=2), ranks=ranks)
    fit.step(other=1)
    fit.step(other=1)
    assert "perf/samples_per_second" not in fit.engine.row(2)
    window = Window(
        first_step=1, last_step=2, steps=1, ranks=2, seconds=2.0, samples=9, tokens=None, useful_tokens=None
    )
    ranks.latest, ranks.finished = window, [window]
    for number in (3, 4):
        fit.feed(4)
        fit.step(other=1)
        row = fit.engine.row(number)
        assert (row["perf/samples_per_second"], row["perf/samples_per_second_per_device"]) == (4.5, 4.0)
    fit.engine.stop(fit.now)
    assert fit.of(Window) == [window]


def signals(parts, *numbers, excluded=()):
    """The signals of each part that these steps complete; None: unknown."""
    steps = [step(number, "evaluation" if number in excluded else None) for number in numbers]
    return [[None if math.isnan(value) else value for value in part.signals["own"]] for part in complete(parts, steps)]


def test_a_part_carries_a_signal_of_each_step_that_the_fit_saw():
    parts, resumed, late = parts_of(length=3), parts_of(after=4, length=3), parts_of(length=3)
    parts.signals = resumed.signals = True
    assert [signals(parts, 1, 2), signals(parts, 3, 4, 5, excluded={3})] == [[], [[0.5, 1.0, 1.5]]]
    assert signals(parts, 6) == [[2.0, 2.5, None]]  # which its observer doesn't know
    assert signals(resumed, 5, 6) == [[None, 2.5, None]]
    assert signals(late, 1) == []
    late.signals = True
    assert signals(late, 2, 3) == [[None, 1.0, 1.5]]


def test_windows_of_very_many_steps_carry_no_signals():
    parts = parts_of(length=MOST_STEPS + 1)
    parts.signals = True
    (part,) = complete(parts, [step(number) for number in range(1, MOST_STEPS + 2)])
    assert part.signals == {}


def test_signals_of_all_observers_are_made_from_all_steps_of_a_window():
    ranks, observers = FakeRanks(window=2, signals=True), observed_by(OtherSeconds(), Observer())
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observers)
    observers.add(OwnSeconds())  # after the fit began
    for _ in range(4):
        fit.feed(4, 32)
        fit.step(other=0.5)
    assert [[*part.signals["other"]] for part in ranks.offered] == [[0.5, 0.5]] * 2
    assert [[*part.signals["own"]] for part in ranks.offered] == [[0.5, 1.0], [1.5, 2.0]]


@pytest.mark.parametrize("wanted", [True, False])
def test_parts_have_signals_only_if_ranks_want_and_an_observer_has_them(wanted):
    ranks = FakeRanks(window=2, signals=wanted)
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observed_by(Observer() if wanted else OwnSeconds()))
    for _ in range(4):
        fit.step(other=0.5)
    assert [part.signals for part in ranks.offered] == [{}, {}]


def test_an_event_reaches_the_due_observers_that_override_it():
    class Late(Observer):
        steps = ()

        @property
        def due(self):
            return 3

        def step_ended(self, step):
            self.steps += (step,)

    observers, late = Observers(), Late()
    assert observers.due == Observer().due
    observers.add(Observer())
    observers.add(late)
    assert observers.due == 3
    for step in (1, 2, 3, 4):
        observers.step_ended(step)
    observers.step_began()
    observers.span_began("evaluation", 4)
    observers.span_ended()
    observers.loader_left(exhausted=False)
    observers.adopted({"gc_interval": 1}, 4)
    observers.steps_measured([])
    assert (late.steps, observers.proposals, observers.watching) == ((3, 4), {}, False)
