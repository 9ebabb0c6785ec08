"""Events in, steps, rows and records out. Seconds are halves and quarters, so that every sum is exact."""

import math
import threading

import pytest
import torch
from fakes import STEP, FakeStream, Fit, a_run, times

from perf_callbacks.kernel.batches.reader import Batch
from perf_callbacks.kernel.engine import engine
from perf_callbacks.kernel.engine.engine import MOST_BATCHES, MOST_MARKS
from perf_callbacks.kernel.engine.ledger import MOST_UNTOLD
from perf_callbacks.kernel.engine.marks import Pause
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import BLOCK
from perf_callbacks.kernel.process.event_timeline import EventTimeline
from perf_callbacks.kernel.records.fit_records import SCHEDULED, STARTUP, Amounts, Gc, Row, Run, Span, Steps, Summary
from perf_callbacks.kernel.records.summary_parts import GcSummary


def test_a_step_is_a_record_between_the_run_and_its_summary():
    fit = Fit()
    for _ in range(3):
        fit.step(**STEP)
    assert [times(step) for step in fit.steps()] == [STEP | {"step": 2.0}] * 3
    assert [step["step"] for step in fit.steps()] == [1, 2, 3]
    fit.engine.stop(fit.now)
    assert [type(fit.records[place]) for place in (0, -1)] == [Run, Summary]


def test_undecided_time_before_a_span_is_other():
    fit = Fit()
    fit.spend("backward", 1)
    fit.spend("undecided", 0.5)
    fit.span("evaluation", 1)
    fit.end_step()
    assert times(fit.steps()[0]) == {"backward": 1, "other": 0.5, "step": 1.5}


def test_a_span_is_in_no_step_and_keeps_its_step_out_of_the_rows():
    fit = Fit()
    fit.step(other=1)
    fit.spend("forward", 1)
    fit.span("evaluation", 8)
    fit.now += 0.5  # still forward
    fit.step(backward=1)
    fit.step(**STEP)
    assert [times(step)["step"] for step in fit.steps()] == [1, 2.5, 2]
    assert [step["excluded"] for step in fit.steps()] == ["first", "evaluation", None]
    assert times(fit.steps()[1]) == {"forward": 1.5, "backward": 1, "step": 2.5}
    assert fit.of(Span) == [Span(kind="evaluation", step=1, start=2.0, seconds=8.0)]
    assert fit.engine.row(3)["perf/step_time"] == 2


def test_marks_batches_and_spans_within_a_span_count_for_nothing():
    fit = Fit()
    fit.engine.begin_span("evaluation", fit.now)
    fit.spend("forward", 4)
    fit.span("checkpoint", 1)
    fit.feed(100)
    fit.engine.end_span(fit.now)
    fit.feed(1)
    fit.step(other=1)
    (step,) = fit.steps()
    assert (times(step), step["samples"]) == ({"other": 1, "step": 1}, 1)
    assert [(span.kind, span.seconds) for span in fit.of(Span)] == [("evaluation", 5)]


def test_an_open_span_ends_with_its_step_or_with_the_fit():
    fit = Fit()
    fit.engine.end_span(fit.now)  # of none
    fit.spend("forward", 1)
    fit.engine.begin_span("evaluation", fit.now)
    fit.engine.begin_span("checkpoint", fit.now)
    fit.now += 4
    fit.end_step()
    fit.step(**STEP)
    assert [times(step)["step"] for step in fit.steps()] == [1, 2]
    fit.engine.begin_span("checkpoint", fit.now)
    fit.now += 2
    assert fit.engine.stop(fit.now).span_seconds == {"evaluation": 4, "checkpoint": 2}


@pytest.mark.parametrize(
    ("run", "happens", "excluded"),
    [
        (a_run(), [], ["first", None]),
        (a_run(step=40, attempt=2), [], ["restart", None]),
        (a_run(), ["evaluation"], ["first", "evaluation"]),
        (a_run(step=40), ["checkpoint", "evaluation"], ["restart", "checkpoint"]),
    ],
)
def test_a_step_that_is_in_no_row_says_why(run, happens, excluded):
    fit = Fit(run)
    for _ in range(2):
        for kind in happens:
            fit.span(kind, 1)
        fit.step(other=1)
    assert [step["excluded"] for step in fit.steps()] == excluded


def test_a_collection_is_carved_out_of_the_stage_it_fell_in():
    fit = Fit()
    fit.step(other=1)
    fit.spend("forward", 1)
    fit.pause(0.25, generation=2, collected=7)
    fit.now += 0.5
    fit.step(backward=1)
    assert times(fit.steps()[1]) == {"forward": 1.5, "gc": 0.25, "backward": 1, "step": 2.75}
    assert fit.of(Gc) == [
        Gc(step=2, stage="forward", generation=2, start=2.0, seconds=0.25, collected=7, automatic=True)
    ]
    row = fit.engine.row(2)
    assert (row["perf/gc_time"], row["perf/gc_pause"], row["perf/gc_loss"]) == (0.25, 0.25, 0.25)


def test_the_longest_pause_of_a_row_is_told_from_their_sum():
    fit = Fit()
    fit.step(other=1)
    for seconds in (0.25, 0.5, 0.125):
        fit.pause(seconds)
        fit.step(forward=1)
        fit.engine.summary()  # asking in between changes nothing
    row = fit.engine.row(4)
    assert (row["perf/gc_pause"], row["perf/gc_loss"]) == (0.5, 0.875)


def test_a_collection_aside_or_elsewhere_takes_nothing_from_a_stage():
    fit = Fit()
    fit.spend("forward", 1)
    fit.engine.begin_span("evaluation", fit.now)
    fit.pause(4)
    fit.engine.end_span(fit.now)
    fit.pause(0.5, here=False)
    fit.end_step()
    assert times(fit.steps()[0]) == {"forward": 1.5, "step": 1.5}
    fit.spend("undecided", 1)
    fit.pause(0.5)
    assert [gc.stage for gc in fit.of(Gc)] == ["aside", "elsewhere", "other"]
    assert fit.engine.summary().gc.seconds == 5


def test_collections_add_up_by_generation_and_purpose():
    fit = Fit()
    for generation, seconds in [(0, 0.5), (2, 1), (0, 0.25)]:
        fit.pause(seconds, generation=generation)
    for ours in (SCHEDULED, None, SCHEDULED, STARTUP):
        fit.engine.pause(Pause(1, fit.now, 0.5, 7, automatic=False, here=True, ours=ours, made=50))
    sums = fit.engine.summary().gc
    assert (sums.collections, sums.seconds, sums.longest) == ((2, 3, 1), 3.25, 1)
    assert (sums.scheduled_made, sums.scheduled_garbage, sums.scheduled_seconds) == (100, 14, 1.0)
    assert Fit(gc_timed=False).engine.summary().gc is None


def test_a_row_without_an_included_step_carries_nothing():
    fit = Fit()
    fit.feed(4)
    fit.step(other=1)
    fit.span("evaluation", 1)
    assert [type(record) for record in fit.records] == [Run, Steps, Span]  # steps are handed out before a span
    fit.step(other=1)
    assert (fit.engine.row(2), fit.engine.whole(2), fit.of(Row)) == ({}, {}, [])


def test_a_step_without_a_batch_adds_0_to_known_amounts_alone():
    fit = Fit()
    for batches in ([(4, 32, 20)], [], [(4, None, None)], [], [(4, 32), (4, None)]):
        for amounts in batches:
            fit.feed(*amounts)
        fit.step(forward=1)
    amounts = [(step["samples"], step["tokens"]) for step in fit.steps()]
    assert amounts == [(4, 32), (0, 0), (4, None), (0, None), (8, None)]
    row = fit.engine.row(5)
    assert [name for name in row if "tokens" in name] == []
    assert row["perf/samples_per_second"] == 3
    assert fit.of(Row) == [Row(step=5, metrics=row)]


def test_samples_of_a_fit_without_batches_are_unknown():
    fit = Fit()
    assert (fit.engine.summary().steps, fit.engine.summary().step_time) == (0, None)
    for _ in range(2):
        fit.step(other=1)
    summary = fit.engine.summary()
    unknown = (summary.samples, summary.tokens, summary.included_samples, summary.total_samples)
    assert unknown == (None, None, None, None)
    assert {step["samples"] for step in fit.steps()} == {None}
    assert not [name for name in fit.engine.row(2) if "per_second" in name]


def test_steps_are_handed_out_after_a_second():
    fit = Fit()
    for seconds in (0.5, 0.5, 0.25, 0.5, 4, 2, 0.5):
        fit.step(forward=seconds)
    assert [block.step for block in fit.of(Steps)] == [(1, 2, 3), (4, 5), (6,)]


def written(fit):
    """The steps in the journal, without asking the engine to complete them."""
    return [step for block in fit.records if isinstance(block, Steps) for step in block.step]


def test_steps_before_a_long_step_are_written_once_by_another_thread():
    fit = Fit()
    for _ in range(3):
        fit.feed(4, 32, torch.tensor(20))
        fit.step(data=0.125, forward=0.125)
    late = []
    for _ in range(6):  # the next step takes its time
        fit.spend("forward", 1)
        fit.engine.write_late(fit.now)
        late.append(len(written(fit)))
    assert late == [0, 0, 3, 3, 3, 3]
    block = fit.records[-1]
    assert (block.forward_time, block.samples, block.excluded) == ((0.125,) * 3, (4,) * 3, ("first", None, None))
    for _ in range(3):
        fit.step(forward=0.5)
    fit.engine.stop(fit.now)
    assert written(fit) == [1, 2, 3, 4, 5, 6]
    assert fit.engine.summary().included_steps == 5


def test_the_other_thread_asks_no_device_and_touches_no_tensor(monkeypatch):
    class Untouched:
        def __add__(self, other):
            raise AssertionError

        __radd__ = __int__ = __add__

    fit = Fit()
    for _ in range(2):
        fit.feed(1, 2, Untouched())
        fit.feed(1, 2, Untouched())
        fit.step(forward=0.25)
    fit.engine.write_late(fit.now + 9)
    assert written(fit) == [1, 2]

    stream = FakeStream()
    timeline, asked = EventTimeline(stream.event), []
    ready = timeline.ready
    monkeypatch.setattr(timeline, "ready", lambda: asked.append(1) or ready())
    fit = Fit(device=timeline)
    for _ in range(3):
        stream.work(0.25)
        fit.step(forward=0.25)
    fit.engine.write_late(fit.now + 9)
    assert written(fit) == []
    stream.run()
    fit.engine.write_late(fit.now + 9)
    assert written(fit) == []
    fit.step(forward=0.25)  # the training thread asks it at the end of its step
    assert asked == [1, 1, 1, 1]
    fit.engine.write_late(fit.now + 9)
    assert written(fit) == [1, 2, 3]


def test_a_reader_of_steps_is_waited_for_only_a_moment(monkeypatch):
    fit = Fit()
    for _ in range(3):
        fit.step(forward=0.25)
    go, there = threading.Event(), threading.Event()

    def hold():
        with fit.engine.step_reader.alone():
            there.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    there.wait(60)
    fit.engine.write_late(fit.now + 9)
    fit.now += 9
    fit.step(forward=0.25)  # would be written now, and is later
    assert written(fit) == []
    assert fit.engine.row(4) == {}
    go.set()
    thread.join(60)
    fit.engine.write_late(fit.now + 9)
    assert written(fit) == [1, 2, 3, 4]


def test_a_killed_fit_has_written_all_steps_but_the_last_five_seconds():
    """Steps of any length, ticks once a second, not in step with them."""
    lengths = [0.0625] * 30 + [2.0] * 5 + [0.5, 7.0] * 4 + [0.25, 0.25, 60.0, 1.0, 4.0] * 3
    fit, ended, tick = Fit(), {}, 1000.7
    for number, length in enumerate(lengths, 1):
        fit.turn(Stage.FORWARD)
        end = fit.now + length
        while fit.now < end:
            fit.now = min(end, max(tick, fit.now))
            if fit.now == tick:
                fit.engine.write_late(fit.now)
                tick += 1
            old = [step for step, time in ended.items() if time < fit.now - 5]
            assert set(old) <= set(written(fit))
        ended[number] = fit.now
        fit.end_step()
    fit.engine.stop(fit.now)
    assert written(fit) == [*range(1, len(lengths) + 1)]


def test_steps_are_handed_out_by_blocks_whatever_rows_are_taken():
    fit, kept = Fit(), []
    for number in range(1, 3 * BLOCK + 1):
        fit.feed(4, 32, 20)
        fit.step(forward=1 / 1024)
        if number % 10 == 0:
            fit.engine.row(number)
        kept.append(number - len(written(fit)))
    assert max(kept) < BLOCK
    assert [len(block.step) for block in fit.of(Steps)] == [BLOCK] * 3


def test_a_resumed_fit_counts_on():
    first = Fit()
    for _ in range(3):
        first.feed(4, 32)
        first.step(other=1)
    for earlier, totals in ((first.engine.amounts(), (20, 160)), (Amounts(samples=None, tokens=None), (None, None))):
        again = Fit(a_run(step=3, attempt=2), earlier=earlier)
        again.number = 3
        for _ in range(2):
            again.feed(4, 32)
            again.step(other=1)
        summary = again.engine.stop(again.now)
        assert (summary.step, summary.steps, summary.included_steps, summary.attempt) == (5, 2, 1, 2)
        assert (summary.samples, summary.tokens, summary.total_samples, summary.total_tokens) == (8, 64, *totals)


def test_a_summary_says_it_all():
    fit = Fit()
    for _ in range(3):
        fit.feed(4, 32, torch.tensor(20))
        fit.step(**STEP)
    fit.span("evaluation", 8)
    fit.pause(0.5, generation=1)
    summary = fit.engine.stop(fit.now, "ValueError: no")
    amounts = {"samples": 12, "tokens": 96, "total_samples": 12, "total_tokens": 96}
    included = {"steps": 2, "seconds": 4.0, "samples": 8, "tokens": 64, "useful_tokens": 40}
    wall_seconds = {"first_step": 2.0, "steps": 4.0, "evaluation": 8.0, "other": 0.5}
    assert {name: seconds for name, seconds in summary.wall_seconds.items() if seconds} == wall_seconds
    assert summary == Summary(
        run_id="a1",
        attempt=1,
        step=3,
        steps=3,
        stage_seconds={f"{name}_time": 2 * seconds for name, seconds in STEP.items()} | {"gc_time": 0.0},
        span_seconds={"evaluation": 8.0},
        span_counts={"evaluation": 1},
        wall_seconds=summary.wall_seconds,
        gc=GcSummary(
            collections=(0, 1, 0), seconds=0.5, longest=0.5, scheduled_seconds=0.0, startup_seconds=0.0,
            scheduled_made=0, scheduled_garbage=0,
        ),
        failure="ValueError: no",
        **amounts,
        **{f"included_{name}": amount for name, amount in included.items()},
    )  # fmt: skip


def test_steps_still_on_the_device_count_in_a_checkpoint():
    stream = FakeStream()
    fit = Fit(device=EventTimeline(stream.event))
    for _ in range(3):
        fit.feed(4, 64)
        fit.end_step()
    assert (fit.engine.amounts(), fit.engine.summary().steps) == (Amounts(samples=12, tokens=192), 3)
    stream.run()
    assert (fit.engine.amounts(), fit.engine.summary().steps) == (Amounts(samples=12, tokens=192), 3)


def test_batches_of_a_step_without_an_end_are_added_up():
    fit = Fit()
    for _ in range(10_000):
        fit.feed(2, 16, 3)
    assert len(fit.engine.batches) <= MOST_BATCHES
    fit.end_step()
    assert [(step["samples"], step["tokens"]) for step in fit.steps()] == [(20_000, 160_000)]


def test_many_collections_of_a_step_without_an_end_are_read_at_once():
    fit = Fit()
    for _ in range(3 * MOST_MARKS):
        fit.pause(0.5)
    assert len(fit.engine.tape.pairs) <= 2 * MOST_MARKS + 2
    fit.end_step()
    assert len(fit.of(Gc)) == 3 * MOST_MARKS


def test_an_event_while_steps_are_read_does_not_read_them_again(monkeypatch):
    """As a signal handler that saves a checkpoint, and so asks for the amounts."""
    fit, seen = Fit(), []
    fit.step(forward=1)
    read = type(fit.engine.tape).read

    def interrupted(tape, *written):
        seen.append((fit.engine.step_reader.collect(), fit.engine.row(1), fit.engine.amounts().samples))
        return read(tape, *written)

    monkeypatch.setattr(type(fit.engine.tape), "read", interrupted)
    assert fit.engine.step_reader.collect()
    assert seen == [(False, {}, 0)]
    assert fit.engine.summary().steps == 1


IDS = ("[0]", (4, 8))
"""A batch of 32 tokens, once it is known that its first tensor holds them."""


def with_tokens(batch):
    return batch._replace(tokens=32) if batch.shape == (IDS,) else batch


def untold(fit, steps):
    for _ in range(steps):
        fit.engine.batch(Batch(4, None, None, (IDS,)))
        fit.step(forward=1.0)


@pytest.mark.parametrize("rows", [(), (1,), (1, 2, 3, 4, 5)], ids=["none", "first", "each"])
def test_tokens_that_are_known_late_are_known_of_earlier_steps(rows, monkeypatch):
    monkeypatch.setattr(engine, "FLUSH_SECONDS", math.inf)  # those that are in the journal by then stay as they are
    fit, logged = Fit(), {}
    for number in range(1, 6):
        untold(fit, 1)
        if number == 3:
            fit.engine.tell_tokens(with_tokens)
        if number in rows:
            logged[number] = fit.engine.row(number)
    summary = fit.engine.summary()
    assert (summary.tokens, summary.included_tokens, fit.engine.amounts().tokens) == (160, 128, 160)
    assert [number for number in logged if "perf/tokens_per_second" in logged[number]] == [
        number for number in rows if number > 2
    ]
    assert [step["tokens"] for step in fit.steps()] == [32] * 5


def test_steps_that_the_device_still_owes_learn_their_tokens_too():
    stream = FakeStream()
    fit = Fit(a_run(timeline="device"), device=EventTimeline(stream.event, capacity=64))
    untold(fit, 3)
    fit.engine.tell_tokens(with_tokens)
    stream.run()
    untold(fit, 1)
    assert fit.engine.amounts().tokens == 128


def test_a_batch_without_tokens_keeps_the_sum_unknown_while_it_is_in_it():
    fit = Fit()
    untold(fit, 1)
    fit.engine.batch(Batch(4, None, None, ()))
    fit.step(forward=1.0)
    fit.engine.tell_tokens(with_tokens)
    untold(fit, 1)
    assert fit.engine.summary().tokens is None
    assert "perf/tokens_per_second" not in fit.engine.row(3)
    untold(fit, 1)
    assert "perf/tokens_per_second" in fit.engine.row(4)


def test_only_some_steps_are_kept_for_being_told():
    fit = Fit()
    untold(fit, 3 * MOST_UNTOLD)
    fit.engine.tell_tokens(with_tokens)
    assert fit.engine.summary().tokens is None
    assert fit.engine.summary().samples == 12 * MOST_UNTOLD
