"""Laws of the tape: however it is read, it says what a naive reading of all marks says. Lengths are exact as floats."""

from hypothesis import given, strategies as st

from perf_callbacks.kernel.engine.marks import BACK, BEGIN, END, WAIT, Pause
from perf_callbacks.kernel.engine.stages import STAGES, Stage
from perf_callbacks.kernel.engine.tape import Tape

MARKED = [Stage.DATA, Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER, Stage.OTHER, Stage.UNDECIDED]
SECONDS = st.integers(0, 2**10).map(lambda units: units / 1024)
MARKS = st.sampled_from([*MARKED, *[BEGIN[stage] for stage in MARKED], WAIT, BACK])
STEPS = st.lists(MARKS, max_size=6)


def naive(events):
    """Seconds by stage of each step, one mark at a time."""
    steps, seconds, stage, before = [], dict.fromkeys(Stage, 0.0), Stage.OTHER, []
    for mark, length in events:
        if mark == "pause":
            seconds[Stage.GC] += length
            continue
        following = mark
        if mark is END:
            before, following = [], Stage.OTHER
        elif mark is BACK:
            following = before.pop() if before else Stage.OTHER
        elif mark not in MARKED:
            before.append(stage)
            following = stage if mark is WAIT and stage is Stage.BACKWARD else mark.stage
        owner = stage
        if stage is Stage.UNDECIDED:
            decided = following in {Stage.OPTIMIZER, Stage.COMMUNICATION}
            owner = Stage.OPTIMIZER if decided else Stage.OTHER
        seconds[owner] += length
        stage = following
        if mark is END:
            steps.append([seconds[stage] for stage in STAGES])
            seconds = dict.fromkeys(Stage, 0.0)
    return steps


def tapes(events):
    """A tape after each event, with the time and with the time of the last mark."""
    tape, now, last = Tape(), 0.0, 0.0
    tape.begin(now)
    for mark, length in events:
        if mark == "pause":
            tape.note(Pause(0, now, length, 0, automatic=True, here=True))
        else:
            last = now + length
            tape.write((mark, last))
        now += length
        yield tape, last


def write(events, reads):
    done = []
    for place, (tape, _) in enumerate(tapes([*events, ("pause", 0.0)])):
        if place in reads or place == len(events):
            done += tape.read()[0].rows
    return done


EVENTS = st.lists(st.tuples(MARKS | st.just(END) | st.just("pause"), SECONDS), max_size=40)


@given(STEPS, st.lists(st.lists(SECONDS, min_size=7, max_size=7), max_size=8), st.sets(st.integers(0, 60)))
def test_steps_of_the_same_marks_are_read_as_by_a_naive_reader(marks, lengths, reads):
    events = [pair for times in lengths for pair in zip([*marks, END], times, strict=False)]
    assert [list(step) for step in write(events, reads)] == naive(events)


@given(EVENTS, st.sets(st.integers(0, 40)))
def test_any_marks_and_pauses_are_read_as_by_a_naive_reader(events, reads):
    assert [list(step) for step in write(events, reads)] == naive(events)


@given(EVENTS)
def test_marks_that_were_read_are_gone_and_no_pause_is_lost(events):
    *_, (tape, _) = tapes([*events, ("pause", 0.0)])
    kinds = [mark for mark, _ in events]
    for ends, pauses in ((kinds.count(END), kinds.count("pause") + 1), (0, 0)):
        past, pauses_read = tape.read()
        assert (len(past.rows), len(pauses_read), tape.pairs) == (ends, pauses, [])


@given(EVENTS, st.sets(st.integers(0, 40)))
def test_the_stage_and_its_beginning_are_known_at_any_time(events, reads):
    for place, (tape, last) in enumerate(tapes(events)):
        if place in reads:
            tape.read()
        assert tape.turned() == (tape.follow().stage, last)
        tape.unfollow()


def test_marks_before_the_begin_or_after_ignore_are_dropped():
    tape = Tape()
    tape.write((Stage.FORWARD, 1.0))
    tape.begin(1.0)
    tape.ignore()
    tape.write((END, 2.0))
    assert tape.pairs == []
    tape.listen()
    tape.write((END, 3.0))
    assert tape.read()[0].rows == [(0, 0, 0, 0, 0, 0, 2.0)]


def test_a_pause_between_the_clock_and_the_end_of_a_step_is_in_the_next():
    tape = Tape()
    tape.begin(0.0)
    tape.note(Pause(0, 1.5, 0.25, 0, automatic=True, here=True))  # the clock had been read before
    tape.write((END, 1.0))
    for now in (2.0, 3.0, 4.0):
        tape.write((END, now))
    steps = [dict(zip(STAGES, step, strict=True)) for step in tape.read()[0].rows]
    assert [step[Stage.GC] for step in steps] == [0, 0.25, 0, 0]
    assert [step[Stage.OTHER] for step in steps] == [1.0, 0.75, 1.0, 1.0]
