"""Stalls at any moment, and whatever ranks say of them."""

from hypothesis import given, strategies as st

from perf_callbacks.kernel.records.codec import pack, unpack
from perf_callbacks.stalls.diagnosis import ENDED, RUNNING, STALLED, Note, Patience, blame

NOTES = st.builds(
    Note,
    state=st.sampled_from([RUNNING, STALLED, ENDED]),
    step=st.integers(0, 3),
    stage=st.sampled_from(["data", "forward", "backward", "other", "checkpoint"]),
    since_seconds=st.floats(0, 1e6),
    spanned=st.booleans(),
    waits=st.booleans(),
    place=st.sampled_from(["", "a.py:2 `f`", "b.py:1 `g`"]),
)


@given(st.dictionaries(st.integers(0, 9), NOTES, min_size=1), st.sets(st.integers(0, 9)), st.permutations(range(10)))
def test_every_rank_is_accounted_for_and_their_order_does_not_matter(notes, silent, order):
    verdict = blame(notes, silent, 10)
    assert verdict.text == blame({rank: notes[rank] for rank in order if rank in notes}, silent, 10).text
    assert {*verdict.causes} <= {*notes}
    stuck = [rank for rank, note in notes.items() if note.state == STALLED]
    assert verdict.causes or not stuck
    assert verdict.text[0].isupper() or verdict.text[0].isdigit()


@given(NOTES)
def test_notes_make_the_round_trip(note):
    assert unpack(Note, pack(note)) == note


@given(st.lists(st.tuples(st.floats(0, 10**4), st.integers(0, 2)), max_size=60), st.floats(0.5, 100))
def test_changes_alternate_and_no_stall_begins_before_its_time(moves, setting):
    patience, now, step, still, before = Patience(str(setting), 0, 0.0), 0.0, 0, 0.0, "over"
    for passed, done in moves:
        now, step = now + passed, step + done
        change = patience.tick(now, step, None)
        still = 0.0 if done else still + passed
        if change:
            assert change != before
            assert change == "over" or still >= setting
            before = change
