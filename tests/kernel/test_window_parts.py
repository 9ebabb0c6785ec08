"""A rank's steps, cut into windows: each is whole, or it is not there."""

import math

import pytest
from fakes import FakeRanks, Fit, a_run, observed_by
from rows import each_row

from perf_callbacks.kernel.engine import engine
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import STAGES
from perf_callbacks.kernel.engine.steps import BLOCK, Columns, Step
from perf_callbacks.kernel.engine.window_sharing import MOST_STEPS, WindowSharing
from perf_callbacks.kernel.records.fit_records import Window


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
    steps = [step(number, "evaluation" if number in excluded else None) for number in numbers]
    return [[*part.signals["own"]] for part in complete(parts, steps)]


def test_a_part_carries_a_value_for_each_step_also_in_no_row():
    parts = parts_of(length=3)
    parts.signals = True
    assert signals(parts, 1, 2) == []
    assert signals(parts, 3, 4, 5, excluded={3}) == [[0.5, 1.0, 1.5]]
    ((*known, unknown),) = signals(parts, 6)
    assert known == [2.0, 2.5]
    assert math.isnan(unknown)


def test_signals_of_steps_before_the_fit_or_their_wish_are_unknown():
    parts = parts_of(after=4, length=3)
    parts.signals = True
    ((unknown, *known),) = signals(parts, 5, 6)
    assert math.isnan(unknown)
    assert known[0] == 2.5
    later = parts_of(length=3)
    assert complete(later, [step(1)]) == []
    later.signals = True
    ((unknown, *known),) = signals(later, 2, 3)
    assert math.isnan(unknown)
    assert known == [1.0, 1.5]


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
