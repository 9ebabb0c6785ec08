"""Whatever fails in a recorder: nothing escapes, it is logged once, and everything is put back."""

import functools
import gc
import signal
import weakref
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from fakes import FakeClock
from journals import descriptors

from perf_callbacks import PerfConfig
from perf_callbacks.integrations import methods
from perf_callbacks.kernel.batches.reader import Batch, BatchReader, Lookup
from perf_callbacks.kernel.engine import engine
from perf_callbacks.kernel.engine.engine import Engine
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.engine.work_model import WorkModel
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process.gc_observer import GcObserver
from perf_callbacks.kernel.records.codec import attempts
from perf_callbacks.kernel.records.fit_records import Gc, Row, Span, Steps, Summary
from perf_callbacks.kernel.records.journal_file import FileJournal, read
from perf_callbacks.kernel.settings.resolution import resolve


def look_up(recorder):
    ids = torch.ones(2, 3, dtype=torch.long)
    recorder.reader.note()
    recorder.batch((ids,))
    recorder.look_up([Lookup(table=1, rows=9, address=ids.data_ptr(), elements=6)])


CALLS = {
    "enter": lambda recorder: recorder.enter(Stage.FORWARD),
    "batch": lambda recorder: recorder.batch({"input_ids": torch.ones(2, 3)}),
    "add": lambda recorder: recorder.add(Batch(2, 6, None, ())),
    "look_up": look_up,
    "collection": lambda _: gc.collect(0),  # an older one goes through all that was ever imported
    "end_step": lambda recorder: recorder.end_step(10**6),  # in which every observer has something to do
    "begin_span": lambda recorder: recorder.begin_span("evaluation"),
    "end_span": lambda recorder: recorder.end_span(),
    "row": lambda recorder: recorder.row(1),
    "whole": lambda recorder: recorder.whole(1),
    "attempt": lambda recorder: recorder.attempt(lambda begun: begun.engine.use(WorkModel())),
    "state": lambda recorder: recorder.state,
    "summary": lambda recorder: recorder.summary,
    "journal_path": lambda recorder: recorder.journal_path,
    "close": lambda recorder: recorder.close(),
}

OTHER_THREADS = {"write_late", "interim_summary"}
POINTS = [
    *[(Engine, name) for name in vars(Engine) if not name.startswith("_") and name not in OTHER_THREADS],
    (Tape, "read"),
    (BatchReader, "read"),
    (GcObserver, "install"),
    (GcObserver, "remove"),
    (FileJournal, "write"),
    (FileJournal, "flush"),
    (FileJournal, "close"),
]


class Present(Observer):
    """Asks for what a recorder hands to its observers, and tells it what they may tell."""

    due = 0

    def __init__(self, recorder):
        self.recorder = recorder

    def step_ended(self, step):
        self.recorder.write(Span(kind="counting", step=step, start=len(self.recorder.engine.batches), seconds=0.0))

    def step_began(self):
        self.recorder.engine.exclude("counted")


def original():
    return "original"


@pytest.fixture
def owner():
    return SimpleNamespace(method=original)


@pytest.fixture
def make(tmp_path, owner):
    """Starts recorders that have changed something."""
    made = []

    def recorder(clock=None, directory=tmp_path, **config):
        settings = resolve(PerfConfig(**config), {})
        place = FitLocation(integration="loop", directory=directory, device=torch.device("cpu"))
        made.append(Recorder(settings, place, **({"clock": clock} if clock else {})))
        if made[-1].active:
            methods.stages(made[-1], owner, "method", Stage.FORWARD)
        return made[-1]

    yield recorder
    for fit in made:
        fit.close()


def journal(directory, attempt=-1):
    return [entry.record for entry in attempts(read(directory / "perf_callbacks" / "rank0.jsonl"))[attempt]]


def raising(*_args, **_kwargs):
    raise ValueError("no")


def interrupted(*_args, **_kwargs):
    raise KeyboardInterrupt


def test_a_fit_leaves_its_records_and_its_summary(tmp_path, make):
    clock = FakeClock()
    recorder = make(clock, gc="off")
    for step in (1, 2, 3):
        recorder.batch({"input_ids": torch.ones(2, 4)})
        recorder.add(Batch(1, 4, 3, ()))  # which was read before
        recorder.enter(Stage.FORWARD)
        clock.sleep(0.5)
        recorder.end_step(step)
    row = recorder.row(3)
    recorder.close()
    assert (row["perf/step_time"], row["perf/tokens_per_second"]) == (0.5, 24.0)
    opening, steps, _, summary = journal(tmp_path)
    assert (opening, summary) == (recorder.run, recorder.summary)
    assert (steps.step_time, steps.tokens, steps.excluded) == ((0.5,) * 3, (12,) * 3, ("first", None, None))


def test_collections_are_observed_unless_they_are_off(tmp_path, make):
    for config in ("observe", "off"):
        recorder = make(gc=config)
        gc.collect()
        recorder.close()
        gc.collect()
        collections = [record for record in journal(tmp_path) if isinstance(record, Gc)]
        assert bool(collections) == (config == "observe")


def test_a_disk_that_refuses_the_journal_costs_nothing_else(tmp_path, make, caplog):
    (tmp_path / "perf_callbacks").write_text("in the way")
    recorder = make()
    for step in (1, 2):
        recorder.end_step(step)
    assert recorder.row(2)["perf/step_time"] > 0
    recorder.close()
    assert (recorder.failure, recorder.summary.steps, len(caplog.records)) == (None, 2, 1)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[0].__name__}.{point[1]}")
def test_a_failure_anywhere_is_logged_once_and_everything_put_back(point, make, owner, caplog, monkeypatch):
    gc.collect()  # no recorder of an earlier test is freed while its parts are broken
    callbacks, inner = list(gc.callbacks), getattr(*point)

    def broken(*args, **kwargs):
        if point == (FileJournal, "close"):  # a file that stays open is told of in whichever test comes next
            inner(*args, **kwargs)
        raising()

    with monkeypatch.context() as patch:
        patch.setattr(engine, "SEVERAL", 1)  # of batches, after which a step is relieved
        patch.setattr(*point, property(raising) if isinstance(inner, property) else broken)
        recorder = make()
        recorder.observe(Present(recorder))
        for call in [*CALLS.values()] * 2:
            call(recorder)
    if point == (GcObserver, "remove"):  # what fails to put something back does not put it back
        gc.callbacks[:] = callbacks
    assert [record.getMessage().rsplit(": ", 2)[1:] for record in caplog.records] == [["ValueError", "no."]]
    assert all(record.exc_info for record in caplog.records)
    assert (owner.method, gc.callbacks, recorder.active) == (original, callbacks, False)


def test_calls_of_a_closed_recorder_do_nothing(make, tmp_path):
    recorder = make()
    recorder.close()
    before = journal(tmp_path)
    for name in CALLS.keys() - {"collection", "state", "summary", "journal_path", "close"}:
        assert CALLS[name](recorder) is None, name
    CALLS["collection"](recorder)
    assert journal(tmp_path) == before


def test_a_failure_stops_the_measuring_and_keeps_the_records(tmp_path, make, caplog):
    recorder = make()
    for step in (1, 2, 3):
        recorder.end_step(step)
    recorder.attempt(raising)
    recorder.end_step(4)
    assert recorder.failure == recorder.summary.failure == "ValueError: no"
    assert recorder.failed
    assert caplog.messages == ["perf_callbacks stopped measuring, training goes on: ValueError: no."]
    summary = journal(tmp_path)[-1]
    assert (summary, summary.steps) == (recorder.summary, 3)


def test_a_change_that_stays_keeps_no_other_from_being_undone(tmp_path, make, owner, caplog):
    recorder = make()
    recorder.patches.add(raising)
    recorder.close()
    assert (recorder.failure, recorder.failed) == (None, True)
    assert caplog.messages == ["perf_callbacks stopped measuring, training goes on: ValueError: no."]
    assert owner.method is original
    assert type(journal(tmp_path)[-1]) is Summary


def test_a_second_close_does_nothing_and_a_closed_recorder_is_freed(tmp_path, caplog):
    recorder = Recorder(
        resolve(None, {}), FitLocation(integration="loop", directory=tmp_path, device=torch.device("cpu"))
    )
    recorder.close()
    recorder.close("again")
    assert [type(record) for record in journal(tmp_path)].count(Summary) == 1
    assert (recorder.failure, caplog.records) == (None, [])
    held = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert held() is None


class Interrupted(Exception):  # noqa: N818 what happens while it is described
    """An error during whose description the user presses Ctrl-C."""

    __str__ = functools.partial(signal.raise_signal, signal.SIGINT)


def test_ctrl_c_in_the_description_of_a_failure_leaves_nothing_behind(tmp_path, make, owner):
    recorder = make()
    with pytest.raises(KeyboardInterrupt):
        recorder.close(Interrupted())
    assert (owner.method, recorder.active) == (original, False)
    assert journal(tmp_path)[-1].failure == "Interrupted"


def test_a_failure_is_in_the_journal_whatever_its_message_is(tmp_path, make):
    for text in ("x" * 5_000_000, "\0" * 5_000_000, "\ud800"):
        make().close(ValueError(text))
        failure = journal(tmp_path)[-1].failure
        assert failure[:13] == "ValueError: " + text[0].encode("utf-8", "replace").decode()


def test_a_failure_within_a_collection_waits_for_the_call_around_it(make, owner, monkeypatch, caplog):
    monkeypatch.setattr(Engine, "pause", raising)
    recorder = make()

    def change(_current):
        gc.collect()  # as it may happen at any moment: here between a change and the note of how to undo it
        return lambda: "ours"

    owner.other = original
    recorder.patches.replace(owner, "other", change)
    assert recorder.active
    recorder.end_step(1)
    assert (recorder.active, owner.other, owner.method) == (False, original, original)
    assert len(caplog.records) == 1


def test_a_failure_within_the_last_collection_is_logged_at_the_end(tmp_path, make, monkeypatch, caplog):
    monkeypatch.setattr(Engine, "pause", raising)
    recorder = make()
    gc.collect()
    recorder.close()
    assert (recorder.failed, len(caplog.records)) == (True, 1)
    assert journal(tmp_path)[-1].failure == "ValueError: no"


def test_records_that_wait_are_written_while_no_step_ends(tmp_path, make):
    """The watchdog's thread does so; here it is called by hand."""
    clock = FakeClock()
    recorder = make(clock, gc="off")
    for step in (1, 2, 3):
        clock.sleep(0.25)
        recorder.end_step(step)
    recorder.row(3)
    seen = []
    for _ in range(5):
        clock.sleep(1)
        recorder.tick(0.0)
        seen.append([type(record) for record in journal(tmp_path)[1:]])
    assert seen == [[Row]] * 2 + [[Row, Steps]] * 3
    assert journal(tmp_path)[-1].step == (1, 2, 3)
    recorder.close()
    assert not recorder.tick(0.0)


def test_the_watchdog_looks_after_a_recorder_for_as_long_as_it_lives(make, monkeypatch):
    watched = []
    monkeypatch.setattr("perf_callbacks.kernel.fit.recorder.WATCHDOG", SimpleNamespace(watch=watched.append, hurry=int))
    recorder = make()
    make(journal=False)
    assert watched == [recorder]


@pytest.mark.parametrize(
    "call",
    [
        "fcntl.flock",
        *[f"perf_callbacks.kernel.records.journal_file.FileJournal.{name}" for name in ("flush", "close")],
        "perf_callbacks.kernel.engine.step_reader.StepReader.drain",
    ],
)
def test_an_interrupt_of_the_close_leaves_no_change_and_no_open_file(tmp_path, owner, monkeypatch, call):
    callbacks = list(gc.callbacks)
    recorder = Recorder(
        resolve(None, {}), FitLocation(integration="loop", directory=tmp_path, device=torch.device("cpu"))
    )
    methods.stages(recorder, owner, "method", Stage.FORWARD)
    path = recorder.journal_path
    assert descriptors(path)
    with monkeypatch.context() as patched:
        patched.setattr(call, interrupted)
        with suppress(KeyboardInterrupt):
            recorder.close()
    assert (owner.method, gc.callbacks, recorder.active) == (original, callbacks, False)
    del recorder
    gc.collect()
    assert descriptors(path) == []
