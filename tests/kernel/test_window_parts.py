"""One rank's steps, cut into windows: each is whole, or it is not there."""

import math

import pytest
from fakes import Fit, a_run

from perf_callbacks.kernel.engine import engine
from perf_callbacks.kernel.engine.observer import Observer, Observers
from perf_callbacks.kernel.engine.stages import STAGES
from perf_callbacks.kernel.engine.steps import BLOCK, Columns, Step
from perf_callbacks.kernel.engine.window_sharing import MOST_STEPS, WindowSharing
from perf_callbacks.kernel.records.fit_records import Window


class FakeRanks:
    """The other ranks, of whom it is heard when the test says so."""

    signals = False

    def __init__(self, window=None):
        self.window = window
        self.latest = None
        self.offered = []
        self.finished = []

    def offer(self, part):
        self.offered.append(part)

    def take(self):
        finished, self.finished = self.finished, []
        return finished


class OwnSeconds(Observer):
    """Signals of some steps, by their numbers."""

    def window_part(self, steps):
        return {"own": [number / 2 if number != 6 else None for number in steps.number]}


class OtherSeconds(Observer):
    def window_part(self, steps):
        return {"other": [seconds[-1] for seconds in zip(*steps.stages, strict=True)]}


def observed_by(*some):
    observers = Observers()
    for one in some:
        observers.add(one)
    return observers


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


def told(parts, *numbers):
    made = complete(parts, [step(number) for number in numbers])
    return [(part.window, part.steps, part.samples) for part in made]


def test_each_window_holds_its_own_steps():
    parts = parts_of(length=3)
    assert told(parts, 1, 2) == []
    assert told(parts, 3, 4, 5, 6, 7) == [(0, 3, 6), (1, 3, 15)]
    assert told(parts, 8, 9) == [(2, 3, 24)]


def test_a_fit_that_begins_within_a_window_tells_of_what_it_did_in_it():
    assert told(parts_of(after=4, length=3), 5, 6, 7, 8, 9) == [(1, 2, 11), (2, 3, 24)]


def test_excluded_steps_are_in_no_part():
    parts = parts_of(length=2)
    (part,) = complete(parts, [step(1, "first"), step(2)])
    assert (part.steps, part.samples, part.tokens) == (1, 2, 20)


@pytest.mark.parametrize("late", [1, 2])
def test_a_window_that_is_heard_of_too_late_is_left_out(late):
    parts = parts_of()
    assert told(parts, *range(1, late + 1)) == []
    parts.use(3)
    assert told(parts, *range(late + 1, 7)) == [(1, 3, 15)]


def test_what_is_heard_of_between_two_windows_is_in_time():
    parts = parts_of()
    assert told(parts, 1, 2, 3) == []
    parts.use(3)
    assert told(parts, 4, 5, 6) == [(1, 3, 15)]


@pytest.mark.parametrize(("before", "after", "expected"), [(4, 3, (2, 3, 24)), (3, 4, (2, 4, 42)), (10, 4, (2, 4, 42))])
def test_windows_of_another_length_begin_afresh(before, after, expected):
    parts = parts_of(length=before)
    told(parts, 1, 2, 3, 4, 5)
    parts.use(after)
    assert told(parts, *range(6, 13))[0] == expected


def test_the_first_window_is_told_of_as_soon_as_it_is_over():
    ranks = FakeRanks(window=2)
    fit = Fit(a_run(world_size=2), ranks=ranks)
    for _ in range(5):
        fit.feed(4, 32)
        fit.step(other=1)
    assert [(part.window, part.steps, part.seconds, part.samples) for part in ranks.offered] == [
        (0, 1, 1.0, 4),  # without the first step
        (1, 2, 2.0, 8),
    ]


def test_a_window_that_is_heard_of_while_training_counts_from_the_next_on(monkeypatch):
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


def test_a_part_carries_a_value_for_each_step_also_for_those_in_no_row():
    parts = parts_of(length=3)
    parts.signals = True
    assert signals(parts, 1, 2) == []
    assert signals(parts, 3, 4, 5, excluded={3}) == [[0.5, 1.0, 1.5]]
    ((*known, unknown),) = signals(parts, 6)
    assert known == [2.0, 2.5]
    assert math.isnan(unknown)


def test_steps_before_a_fit_or_before_signals_were_wanted_are_unknown():
    parts = parts_of(after=4, length=3)
    parts.signals = True
    ((unknown, *known),) = signals(parts, 5, 6)
    assert math.isnan(unknown)
    assert known[0] == 2.5
    later = parts_of(length=3)
    assert told(later, 1) == []
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
    ranks = FakeRanks(window=2)
    ranks.signals = True
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observed_by(OtherSeconds(), Observer(), OwnSeconds()))
    for _ in range(4):
        fit.feed(4, 32)
        fit.step(other=0.5)
    assert [[*part.signals["other"]] for part in ranks.offered] == [[0.5, 0.5]] * 2
    assert [[*part.signals["own"]] for part in ranks.offered] == [[0.5, 1.0], [1.5, 2.0]]


def test_the_first_window_has_signals_if_their_observer_joins_after_the_fit_began():
    ranks, observers = FakeRanks(window=2), observed_by()
    ranks.signals = True
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observers)
    observers.add(OwnSeconds())
    for _ in range(2):
        fit.step(other=0.5)
    assert [[*part.signals["own"]] for part in ranks.offered] == [[0.5, 1.0]]


@pytest.mark.parametrize("wanted", [True, False])
def test_parts_have_signals_only_if_ranks_want_and_an_observer_has_them(wanted):
    ranks = FakeRanks(window=2)
    ranks.signals = wanted
    fit = Fit(a_run(world_size=2), ranks=ranks, observers=observed_by(Observer() if wanted else OwnSeconds()))
    for _ in range(4):
        fit.step(other=0.5)
    assert [part.signals for part in ranks.offered] == [{}, {}]
