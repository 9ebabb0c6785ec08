"""Whether something makes steps shorter, told from turns in which it is done and left."""

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from perf_callbacks.kernel.engine.steps import Step
from perf_callbacks.kernel.fit.trial import CUT_OFF, FEWEST, PAIRS, SETTLE, TURN, Outcome, Trial
from perf_callbacks.kernel.records.fit_records import Gc

AFTER = 102
TURNS = 2 * PAIRS
ALL = range(AFTER + 1, AFTER + TURNS * TURN + 1)


def step(number, seconds, *, pause=0.0, excluded=None):
    return Step(number, excluded, None, None, None, None, pause, pause, None if seconds is None else (seconds,))


def done_in(number):
    """The step that is to end as this number is done with it."""
    return Trial(AFTER).done_after(number - 1)


def turn_of(number):
    return (number - AFTER - 1) // TURN


def collection(step, seconds, *, made="automatic", stage="other"):
    return Gc(
        step=step,
        stage=stage,
        generation=2 if seconds > 0.1 else 1,
        start=0.0,
        seconds=seconds,
        collected=0,
        automatic=made == "automatic",
        ours="schedule" if made == "schedule" else None,
    )


def come_of(take, *, collecting=False, made=lambda number: "schedule" if done_in(number) else "automatic"):
    """The outcome of steps each of which is made from its number, with the collections in them."""
    trial, steps = Trial(AFTER, collecting=collecting), [take(number) for number in ALL]
    pauses = [one for one in steps if one.pause_seconds]
    trial.see(steps, [collection(one.number, one.pause_seconds, made=made(one.number)) for one in pauses])
    assert trial.over
    return trial.outcome()


def noisy(seed, *, saved=0.0, spread=0.05, hiccups=0.01, usual=0.2):
    """Steps that vary, some of which are held up by whoever shares the machine."""
    random = Random(seed)

    def take(number):
        seconds = random.gauss(usual, spread * usual) - (saved if done_in(number) else 0)
        if random.random() < hiccups:
            seconds += 0.25 * usual * random.paretovariate(1.5)
        return step(number, seconds)

    return take


def test_which_way_a_step_goes_depends_on_its_number_alone():
    trial = Trial(AFTER)
    before = [trial.done_after(number) for number in range(AFTER - 300, trial.last + 300)]
    trial.see([step(number, 1.0) for number in range(AFTER + 1, AFTER + 500)])
    assert [trial.done_after(number) for number in range(AFTER - 300, trial.last + 300)] == before
    assert [Trial(AFTER + 7).done_after(number + 7) for number in range(AFTER - 300, trial.last + 300)] == before


def test_turns_are_done_as_often_as_left_and_half_of_the_pairs_are_swapped():
    """Not by a period: somebody else's may be the same."""
    ways = [done_in(AFTER + 1 + turn * TURN) for turn in range(TURNS)]
    assert ways[:8] == [False, True, True, False, True, False, False, True]
    assert all(first is not second for first, second in zip(ways[::2], ways[1::2], strict=True))
    assert sum(ways[::2]) == PAIRS // 2
    assert not any(ways == (ways[:period] * TURNS)[:TURNS] for period in range(1, TURNS // 2 + 1))
    assert [done_in(number) for number in ALL] == [way for way in ways for _ in range(TURN)]


def test_before_the_first_turn_and_after_the_last_one_it_is_left():
    trial = Trial(AFTER)
    assert trial.last == ALL[-1]
    for number in (-1, 0, 1, AFTER - 1, trial.last, trial.last + 1, trial.last + 2 * TURN):
        assert not trial.done_after(number)


def test_each_boundary_is_met_on_the_way_and_then_there_is_none():
    trial, met = Trial(AFTER), [AFTER]
    assert [trial.turns_after(number) for number in (0, 1, AFTER - 1)] == [AFTER] * 3
    while (following := trial.turns_after(met[-1])) is not None:
        assert {trial.turns_after(number) for number in range(met[-1], following)} == {following}
        met.append(following)
    assert met == [AFTER + turn * TURN for turn in range(TURNS + 1)]
    assert {later - earlier for earlier, later in pairwise(met)} == {TURN}
    assert trial.turns_after(trial.last + 1000) is None


def chances(pairs):
    """How likely each sum of ranks is where signs are a coin's: Wilcoxon's, one rank after the other."""
    ways = [1]
    for rank in range(1, pairs + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if total >= rank else 0)
            for total in range(len(ways) + rank)
        ]
    return [way / 2**pairs for way in ways]


def test_999_of_1000_trimmed_intervals_hold_the_truth_and_no_more():
    assert [*CUT_OFF] == [*range(FEWEST, PAIRS + 1)]
    for pairs, cut in CUT_OFF.items():
        known = chances(pairs)
        assert sum(known) == pytest.approx(1)
        assert 2 * sum(known[: cut + 1]) <= 0.001
        assert 2 * sum(known[: cut + 2]) > 0.001


def test_what_is_saved_of_each_step_is_told_with_how_long_one_is():
    outcome = come_of(lambda number: step(number, 0.75 if done_in(number) else 1.0))
    assert outcome == Outcome(saved=0.25, low=0.25, high=0.25, left=1.0, pairs=PAIRS)
    assert outcome.better


def test_what_takes_longer_is_not_better():
    outcome = come_of(lambda number: step(number, 1.25 if done_in(number) else 1.0))
    assert (outcome.saved, outcome.better) == (-0.25, False)


def test_what_changes_nothing_at_all_is_not_better():
    assert not come_of(lambda number: step(number, 1.0)).better


@pytest.mark.parametrize(
    "odd",
    [
        lambda number: step(number, 100.0, excluded="evaluation"),
        lambda number: step(number, None, excluded="lost"),
        lambda number: step(number, None),
    ],
    ids=["excluded", "lost", "unknown"],
)
def test_steps_that_are_in_no_row_do_not_count(odd):
    outcome = come_of(
        lambda number: odd(number) if number % 3 == 0 and done_in(number) else step(number, 1 - 0.5 * done_in(number))
    )
    assert outcome == Outcome(0.5, 0.5, 0.5, 1.0, PAIRS)


def test_the_first_steps_of_a_turn_do_not_count():
    assert SETTLE == 2
    outcome = come_of(lambda number: step(number, 50.0 if (number - AFTER - 1) % TURN < SETTLE else 1.0))
    assert outcome == Outcome(0.0, 0.0, 0.0, 1.0, PAIRS)


def test_steps_before_and_after_the_turns_do_not_count():
    trial = Trial(AFTER)
    trial.see([step(number, 90.0) for number in range(1, AFTER + 1)])
    trial.see([step(number, 1.0) for number in ALL[:-1]])
    assert not trial.over
    trial.see([step(ALL[-1], 1.0)])
    trial.see([step(number, 90.0) for number in range(ALL[-1] + 1, ALL[-1] + 200)])
    assert (trial.over, trial.outcome()) == (True, Outcome(0.0, 0.0, 0.0, 1.0, PAIRS))


@pytest.mark.parametrize("missing", [5, 6, 16])
def test_too_few_whole_pairs_tell_nothing(missing):
    """A pair is missing where an evaluation takes up more than half of one of its turns."""

    def take(number):
        turn, place = divmod(number - AFTER - 1, TURN)
        disturbed = turn % 2 == 0 and turn // 2 < missing and place >= TURN // 2 + SETTLE - 1
        return step(number, 1.0, excluded="evaluation" if disturbed else None)

    outcome = come_of(take)
    assert (None if outcome is None else outcome.pairs) == (11 if missing == 5 else None)


def test_a_turn_half_of_which_is_there_still_counts():
    outcome = come_of(
        lambda number: step(number, 1.0, excluded="x" if (number - AFTER - 1) % TURN >= TURN // 2 + SETTLE else None)
    )
    assert outcome.pairs == PAIRS


def test_without_a_step_nothing_is_told():
    assert Trial(AFTER).outcome() is None


def test_what_grows_evenly_meanwhile_cancels_out():
    """Steps get twice as long in the course of it: 3 % within each pair, of which less than a thousandth is left."""
    outcome = come_of(lambda number: step(number, 1 + (number - AFTER) / len(ALL)))
    assert abs(outcome.saved) < 1e-3 * outcome.left
    assert outcome.low < 0 < outcome.high
    assert not outcome.better


@pytest.mark.parametrize("factor", [2.0**-10, 0.5, 2.0**10])
def test_times_scaled_by_a_factor_are_found_as_scaled_by_it(factor):
    def take(number):
        return scaled(number, 1.0)

    def scaled(number, by):
        pause = 0.25 if number % 40 == 0 and not done_in(number) else 0.0
        return step(number, by * (1.0 + Random(number).random() + pause), pause=by * pause)

    outcome, other = come_of(take), come_of(lambda number: scaled(number, factor))
    assert other == Outcome(*[amount * factor for amount in outcome[:4]], outcome.pairs)


def test_in_whatever_blocks_steps_are_seen_they_tell_the_same():
    take, trial, random = noisy(3), Trial(AFTER), Random(4)
    steps, whole = [take(number) for number in ALL], Trial(AFTER)
    whole.see(steps)
    while steps:
        size = random.randint(1, 90)
        trial.see(steps[:size])
        steps = steps[size:]
    assert trial.outcome() == whole.outcome()


SEEDS = range(20)
YOUNG, FULL = 0.003, 0.25
"""Seconds of a collection."""
LEFT = [turn for turn in range(TURNS) if not done_in(AFTER + 1 + turn * TURN)]
RARE = {AFTER + 1 + LEFT[turn] * TURN + 20 for turn in (1, 7, 12)}
"""Steps, all of them left, in which a full collection falls."""


def test_a_rare_collection_counts_in_full_and_for_all_of_its_steps():
    """Of 16 pairs only three have one: a middle of differences alone would not see them."""

    def take(number):
        pause = FULL if number in RARE else 0.0
        return step(number, Random(number).gauss(0.01, 1e-5) + pause, pause=pause)

    outcome = come_of(take, collecting=True)
    assert outcome.better
    assert outcome.saved == pytest.approx(3 * FULL / (TURNS * (TURN - SETTLE)), rel=0.02)
    assert not come_of(take).better


def test_time_unrelated_to_collections_is_neither_their_gain_nor_loss():
    for seed in SEEDS:
        random, noise = Random(seed), noisy(seed)

        def take(number, random=random, noise=noise):
            pause = FULL if random.random() < 0.01 else 0.0
            return step(number, noise(number).seconds[0] + pause, pause=pause)

        outcome = come_of(take, made=lambda _: "automatic")
        assert outcome.low < 0 < outcome.high


def test_collections_of_somebody_else_are_nothing_that_could_be_saved():
    def take(number):
        pause = FULL if number % (4 * TURN) == 0 else 0.0
        return step(number, Random(number).gauss(0.1, 1e-3) + pause, pause=pause)

    outcome = come_of(take, collecting=True, made=lambda _: "program")
    assert outcome.low < 0 < outcome.high


def test_collections_that_are_part_of_no_step_count_nothing():
    trial = Trial(AFTER, collecting=True)
    trial.see([step(number, 1.0) for number in ALL], [collection(number, FULL, stage="aside") for number in ALL])
    assert trial.outcome() == Outcome(0.0, 0.0, 0.0, 1.0, PAIRS)


def test_collections_of_a_step_may_be_told_of_before_it():
    """As on a device, whose steps are known later."""
    trial = Trial(AFTER, collecting=True)
    whole = come_of(
        lambda number: step(number, 1.0 + FULL * (number in RARE), pause=FULL * (number in RARE)), collecting=True
    )
    for number in ALL:
        trial.see([], [collection(number, FULL)] if number in RARE else [])
        if number > AFTER + 5:
            trial.see([step(number - 5, 1.0 + FULL * (number - 5 in RARE))], [])
    trial.see([step(number, 1.0) for number in ALL[-5:]])
    assert trial.outcome() == whole


def test_a_hiccup_that_is_no_collection_moves_nothing():
    calm = come_of(noisy(1, hiccups=0))
    for at in (AFTER + 20, AFTER + TURN + 20, AFTER + 3 * TURN + 20):
        take = noisy(1, hiccups=0)
        outcome = come_of(lambda number, at=at, take=take: step(number, take(number).seconds[0] + 0.5 * (number == at)))
        assert outcome.better is calm.better is False
        assert abs(outcome.saved - calm.saved) < 0.1 * 0.5 / (TURN - SETTLE)


def test_a_collection_that_a_device_does_not_wait_for_counts_nothing():
    outcome = come_of(lambda number: step(number, 1.0, pause=FULL if number in RARE else 0.0), collecting=True)
    assert outcome == Outcome(0.0, 0.0, 0.0, 1.0, PAIRS)


def test_a_collection_that_a_device_waits_for_in_part_counts_in_part():
    outcome = come_of(
        lambda number: step(number, 1.125 if number in RARE else 1.0, pause=FULL * (number in RARE)), collecting=True
    )
    assert outcome.saved == pytest.approx(3 * 0.125 / (TURNS * (TURN - SETTLE)))


@pytest.mark.parametrize("hiccups", [0, 0.01, 0.05])
def test_what_saves_nothing_is_found_to_on_a_machine_however_busy(hiccups):
    assert not any([come_of(noisy(seed, hiccups=hiccups)).better for seed in SEEDS])


@pytest.mark.parametrize(("hiccups", "found"), [(0, 20), (0.01, 20), (0.05, 18)])
def test_a_gain_of_a_twentieth_is_surer_on_a_quiet_machine(hiccups, found):
    assert sum([come_of(noisy(seed, saved=0.01, hiccups=hiccups)).better for seed in SEEDS]) >= found


def collecting(seed):
    """Steps of 50 ms with young collections now and then, and rare full ones; in turns done, only one at the end."""
    random, noise = Random(seed), noisy(seed, usual=0.05, spread=0.02)

    def take(number):
        pause = 0.0
        if not done_in(number):
            pause = YOUNG * (random.random() < 0.3) + FULL * (random.random() < 0.005)
        elif (number - AFTER) % TURN == 0:
            pause = YOUNG
        return step(number, noise(number).seconds[0] + pause, pause=pause)

    return take


def test_collections_that_are_saved_are_found_to_be():
    outcomes = [come_of(collecting(seed), collecting=True) for seed in SEEDS]
    assert all([outcome.better for outcome in outcomes])
    saved = YOUNG * (0.3 - 1 / (TURN - SETTLE)) + FULL * 0.005 / 2
    assert fmean([outcome.saved for outcome in outcomes]) == pytest.approx(saved, rel=0.15)


@pytest.mark.slow
def test_of_300_intervals_as_many_hold_the_truth_as_is_said():
    random, held = Random(7), 0
    for _ in range(300):
        means = [random.gauss(1.0, 0.05) - 0.02 * done_in(number) for number in ALL]
        low, high = come_of(lambda number, means=means: step(number, means[number - AFTER - 1]))[1:3]
        held += low <= 0.02 <= high
    assert held >= 0.97 * 300
