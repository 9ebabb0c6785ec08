"""When steps have stopped ending, and what is said of it, with time as an argument."""

import dataclasses
from pathlib import Path

import pytest
from rows import each_row
from snapshots import matches

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


def test_spans_in_a_row_are_no_stall():
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


ALONE = note(stage="forward", waits=True, place="train.py:9 `gather`, in distributed_c10d.py:3252 `all_reduce`")
LATE = note(step=11, waits=True, stage="other", place="train.py:60 `log`")
LAST, LEFT = note(step=40), note(ENDED, step=40)
BARRIER = "train.py:60 `main`, in distributed_c10d.py:4700 `barrier`"
GONE = dataclasses.replace(note(RUNNING, step=40, waits=True, stage="other", place=BARRIER), left=True)
EXPORTS = dataclasses.replace(GONE, waits=False, place="train.py:61 `export`")
RAISED = dataclasses.replace(LEFT, failure=r"ValueError: a\nb")
WORKER = "Rank 1 waits for the loader's worker 0, which sleeps: `py-spy dump --pid 7` shows its line."
SAVES = note(stage="checkpoint", spanned=True, waits=False)
CASES = {
    "one of eight is busy": ({rank: IN_DATA if rank == 3 else note() for rank in range(8)}, {3}),
    "one of two is busy": ({0: note(), 1: IN_DATA}, {1}),
    "one of two waits in another collective": ({0: note(), 1: ALONE}, {0, 1}),
    "one of eight waits in another collective": ({rank: ALONE if rank == 5 else note() for rank in range(8)}, {5}),
    "one is a step behind": ({0: note(), 1: note(), 2: LATE}, {2}),
    "one is silent": ({0: note(), 1: note(RUNNING, stage="forward"), 2: note()}, {1}, {1}),
    "one was never heard of": ({0: note(), 2: note()}, {0, 2}, (), 3),
    "two have ended": ({0: LAST, 1: LEFT, 2: LEFT, 3: LAST}, {1, 2}, {1, 2}),
    "one has raised": ({0: LAST, 1: RAISED}, {1}),
    "one left the loop and waits": ({0: LAST, 1: GONE}, {1}),
    "two left the loop, one of them is busy": ({0: LAST, 1: GONE, 2: EXPORTS}, {1, 2}),
    "one waits for a worker of its loader": ({0: note(), 1: dataclasses.replace(IN_DATA, worker=WORKER)}, {1}),
    "two still make steps": ({0: IN_DATA, 1: note(RUNNING), 2: note(RUNNING)}, {0}),
    "one saves": ({0: SAVES, 1: note()}, {0}),
    "eight wait in one place": ({rank: note() for rank in range(8)}, {*range(8)}),
    "two wait in one place of the forward": ({0: note(stage="forward"), 1: note(stage="forward")}, {0, 1}),
}
"""Notes and the ranks that cause the stall; ranks that are silent, and the number of ranks if some have no note."""


@each_row("case", CASES)
def test_the_ranks_that_cause_a_stall_are_found(case):
    notes, causes, *more = CASES[case]
    assert {*said(notes, *more).causes} == causes


def test_every_sentence_is_as_in_the_snapshot():
    """`WRITE_SNAPSHOTS=1 python -m pytest tests/stalls/test_diagnosis.py` writes it anew."""
    shown = "".join([f"{case}\n  {said(notes, *more).text}\n" for case, (notes, _, *more) in CASES.items()])
    assert matches(Path(__file__).with_name("sentences.txt"), shown)


def test_a_checkpoint_that_others_may_wait_for_is_not_told_yet():
    saving = note(RUNNING, stage="checkpoint", spanned=True)
    assert undecided({0: saving, 1: note()}, ())
    assert not undecided({0: saving, 1: note()}, {0})
    assert not undecided({0: note(stage="checkpoint", spanned=True), 1: note()}, ())


def test_thousands_of_ranks_are_counted_and_not_listed():
    notes = {rank: note(stage="data" if rank % 2 else "backward", place=f"a.py:{rank % 7} `f`") for rank in range(4096)}
    found = said(notes | {rank: note(RUNNING) for rank in range(100, 2000)}, {*range(100, 2000)})
    assert len(found.text) < 500
    assert "Ranks 100, 101, 102, 103 and 1,896 more " in found.text
