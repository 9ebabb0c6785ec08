"""When steps have stopped ending, and what is said of it, with time as an argument."""

import pytest

from perf_callbacks.stalls.diagnosis import ENDED, RUNNING, STALLED, Note, Patience, blame, undecided

PLACE = "train.py:50 `main`"


def ticks(patience, seconds, *, step=10, span=None, longer=False, start=0, every=1):
    """The changes during so many seconds, each with the second."""
    found = []
    for now in range(start + every, start + seconds + 1, every):
        change = patience.tick(float(now), step, span, longer=longer)
        if change:
            found.append((now, change))
    return found


def a_patience(setting="60", step=10):
    """Of a fit whose first steps are behind it."""
    patience = Patience(setting, step - 10, 0.0)
    patience.tick(0.0, step, None)
    return patience


def test_a_stall_begins_once_after_the_patience_until_the_next_step():
    patience = a_patience()
    assert ticks(patience, 200) == [(60, "began")]
    assert patience.tick(201.0, 11, None) == "over"
    assert patience.lost == 201.0
    assert ticks(patience, 59, step=11, start=201) == []


def test_each_step_begins_the_wait_anew():
    patience = a_patience()
    for step in range(10, 40):
        assert ticks(patience, 50, step=step, start=50 * step) == []


@pytest.mark.parametrize("span", [("evaluation", 3.5), ("checkpoint", 3.5)])
def test_an_evaluation_or_a_checkpoint_may_take_ten_times_as_long(span):
    patience = a_patience()
    assert ticks(patience, 700, span=span, longer=True) == [(601, "began")]  # the first second begins it
    assert ticks(patience, 1, start=700) == [(701, "over")]


def test_the_time_in_a_span_does_not_count_after_it():
    patience = a_patience()
    assert ticks(patience, 590, span=("evaluation", 0.0), longer=True) == []
    assert ticks(patience, 60, start=590) == []
    assert ticks(patience, 5, start=650) == [(651, "began")]


def test_spans_one_after_the_other_are_no_stall():
    patience = a_patience()
    for start in range(0, 6000, 500):
        assert ticks(patience, 500, span=("evaluation", start), longer=True, start=start) == []


def test_the_first_three_steps_may_take_ten_times_as_long():
    patience = Patience("60", 100, 0.0)
    for step in (100, 101, 102):
        assert ticks(patience, 500, step=step, start=500 * step) == []
    assert ticks(patience, 100, step=103, start=10**5) == [(10**5 + 61, "began")]
    assert [second for second, _ in ticks(Patience("60", 0, 0.0), 700, step=0)] == [600]


def test_a_stall_has_all_seconds_even_if_no_thread_could_look():
    patience = a_patience("5")
    assert ticks(patience, 4) == []
    assert patience.tick(8.0, 10, None) == "began"
    assert patience.without_step == 8.0
    patience.tick(15.0, 10, None)
    assert patience.tick(15.5, 11, None) == "over"
    assert patience.lost == 15.5


@pytest.mark.parametrize("gap", [10.0, 3600.0, 10**6])
def test_a_stopped_process_a_debugger_and_a_suspended_laptop_are_no_stall(gap):
    patience = a_patience("5")
    assert ticks(patience, 3) == []
    assert patience.tick(3 + gap, 10, None) is None
    assert patience.tick(4 + gap, 10, None) == "began"


def test_by_default_a_minute_or_twenty_median_steps():
    patience = a_patience("auto")
    assert patience.base == 60.0
    now = 0
    for step in range(11, 40):
        ticks(patience, 5, step=step - 1, start=now)
        now += 5
        patience.tick(float(now), step, None)
    assert patience.base == pytest.approx(100.0, rel=0.1)


def test_a_few_steps_of_ten_times_the_length_are_no_stall():
    patience, now = a_patience("auto"), 0
    for step in range(11, 300):
        length = 40 if step % 33 == 0 else 4
        assert ticks(patience, length, step=step, start=now) == []
        now += length
    assert patience.base == pytest.approx(80.0, rel=0.1)


def note(state=STALLED, *, step=12, stage="backward", waits=None, place=PLACE, spanned=False):
    waits = stage == "backward" if waits is None else waits
    return Note(state=state, step=step, stage=stage, since_seconds=60.0, spanned=spanned, waits=waits, place=place)


IN_DATA = note(stage="data", place="loader.py:41 `__getitem__`")


def said(notes, silent=(), world_size=None):
    return blame(notes, silent, world_size or len(notes))


def test_who_is_busy_is_named_and_who_waits_is_counted():
    found = said({rank: IN_DATA if rank == 3 else note() for rank in range(8)})
    assert found.text == f"Rank 3 is in data: loader.py:41 `__getitem__`. 7 ranks wait in backward: {PLACE}."
    assert found.causes == {3: IN_DATA}


def test_one_of_two():
    assert said({0: note(), 1: IN_DATA}).text == (
        f"Rank 1 is in data: loader.py:41 `__getitem__`. Rank 0 waits in backward: {PLACE}."
    )


def test_who_waits_in_a_collective_that_the_others_never_enter():
    alone = note(stage="forward", waits=True, place="train.py:9 `gather`, in distributed_c10d.py:3252 `all_reduce`")
    two = said({0: note(), 1: alone})
    assert f"Rank 1 is in {alone}." in two.text
    assert f"Rank 0 is in {note()}." in two.text
    many = said({rank: alone if rank == 5 else note() for rank in range(8)})
    assert many.text == f"Rank 5 is in {alone}. 7 ranks wait in backward: {PLACE}."


def test_who_is_a_step_behind_is_named_wherever_it_waits():
    late = note(step=11, waits=True, stage="other", place="train.py:60 `log`")
    assert said({0: note(), 1: note(), 2: late}).text == (
        f"Rank 2 is in other code: train.py:60 `log`. 2 ranks wait in backward: {PLACE}."
    )


def test_who_is_silent_is_told_with_what_was_last_heard_of_it():
    found = said({0: note(), 1: note(RUNNING, stage="forward"), 2: note()}, {1})
    assert found.text == (
        f"Rank 1 is silent, last heard of in step 13 in forward: {PLACE}. 2 ranks wait in backward: {PLACE}."
    )
    assert [*found.causes] == [1]


def test_who_was_never_heard_of():
    assert said({0: note(), 2: note()}, world_size=3).text == (
        f"Rank 1 never reported: is the callback missing there? 2 ranks wait in backward: {PLACE}."
    )


def test_who_has_ended_its_training():
    ended = note(ENDED, step=40)
    assert said({0: note(step=40), 1: ended, 2: ended, 3: note(step=40)}, {1, 2}).text == (
        f"Ranks 1 and 2 have ended the training after step 40. 2 ranks wait in backward: {PLACE}."
    )


def test_who_still_makes_steps():
    assert said({0: IN_DATA, 1: note(RUNNING), 2: note(RUNNING)}).text == (
        "Rank 0 is in data: loader.py:41 `__getitem__`. 2 ranks still make steps."
    )


def test_all_in_one_place():
    assert said({rank: note() for rank in range(8)}).text == f"8 ranks wait in backward: {PLACE}."
    lock = note(stage="forward")
    assert said({0: lock, 1: lock}).text == f"Ranks 0 and 1 are in forward: {PLACE}."


def test_a_checkpoint_that_others_may_wait_for_is_not_told_yet():
    saving = note(RUNNING, stage="checkpoint", spanned=True)
    assert undecided({0: saving, 1: note()}, ())
    assert not undecided({0: saving, 1: note()}, {0})
    assert not undecided({0: note(stage="checkpoint", spanned=True), 1: note()}, ())
    assert said({0: note(stage="checkpoint", spanned=True, waits=False), 1: note()}).text == (
        f"Rank 0 is in a checkpoint: {PLACE}. Rank 1 waits in backward: {PLACE}."
    )


def test_thousands_of_ranks_are_counted_and_not_listed():
    notes = {rank: note(stage="data" if rank % 2 else "backward", place=f"a.py:{rank % 7} `f`") for rank in range(4096)}
    found = said(notes | {rank: note(RUNNING) for rank in range(100, 2000)}, {*range(100, 2000)})
    assert len(found.text) < 500
    assert "Ranks 100, 101, 102, 103 and 1,896 more are silent" in found.text
