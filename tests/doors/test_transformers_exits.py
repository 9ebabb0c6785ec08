"""However training ends, and whatever breaks in us: everything is as it was, and training never notices."""

import gc
import itertools
import logging
import pkgutil
import time

import pytest
import tiny
import torch
from counted import bits
from transformers import Trainer, TrainerCallback

from perf_callbacks.core.codec import attempts
from perf_callbacks.core.records import Run, Steps, Summary
from perf_callbacks.host.failures import describe
from perf_callbacks.host.journal_file import read
from perf_callbacks.session.recorder import Recorder
from perf_callbacks.transformers import PerfCallback

HOOKS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_substep_end",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_log",
    "on_prediction_step",
    "on_evaluate",
    "on_save",
    "on_epoch_end",
    "on_train_end",
)
METHODS = {
    "the model": lambda trainer: (trainer.model.model, "forward"),
    "the loss": lambda trainer: (trainer, "compute_loss"),
    "the collator": lambda trainer: (trainer, "data_collator"),
    "the backward": lambda trainer: (trainer.accelerator, "backward"),
    "evaluate": lambda trainer: (trainer, "evaluate"),
    "_save_checkpoint": lambda trainer: (trainer, "_save_checkpoint"),
}
TOLD = hasattr(Trainer, "_run_epoch")
"""Transformers 4 calls the scheduler where nobody tells us of an exception, and saves what is put on a scheduler."""
PLACES = (*HOOKS, *METHODS, "the optimizer", *(("the scheduler",) if TOLD else ()))
ERRORS = (RuntimeError("no more"), KeyboardInterrupt(), SystemExit(3))
ORDERS = ("before ours", "after ours", "before ours, added late")
RUN = {
    "max_steps": 4,
    "gradient_accumulation_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
}


class Bomb(TrainerCallback):
    """Raises at one place once it is reached in the third step, or wherever it is reached first after that."""

    def __init__(self, place, error):
        self.error, self.armed, self.trainer = error, True, None
        if place in HOOKS:
            setattr(self, place, self.explode)

    def explode(self, *_args, **_kwargs):
        early = self.trainer.state.global_step < 2 and self.place not in {"on_train_begin", "on_epoch_begin"}
        if self.armed and not early:
            raise self.error

    def put(self, trainer, place):
        self.trainer, self.place = trainer, place
        explode = self.explode

        class Optimizer(torch.optim.SGD):
            def step(self, closure=None):
                if place == "the optimizer":
                    explode()
                return super().step(closure)

        trainer.optimizer = Optimizer(trainer.model.parameters(), lr=0.01)

        def rate(step):
            if step and place == "the scheduler":
                explode()
            return 1.0

        trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, rate)
        if place in METHODS:
            owner, name = METHODS[place](trainer)
            inner = getattr(owner, name)
            setattr(owner, name, lambda *args, **kwargs: (explode(), inner(*args, **kwargs))[1])


def belongings(trainer):
    """What could be seen of us afterwards: methods put on objects, callbacks, what the collector is set to."""
    handler, optimizer = trainer.callback_handler, trainer.optimizer
    owners = (trainer, handler, handler.train_dataloader, trainer.accelerator, trainer.lr_scheduler, trainer.model)
    methods = {
        f"{type(owner).__name__}.{name}": value
        for owner in (*owners, optimizer, optimizer.optimizer)
        for name, value in vars(owner).items()
        if callable(value) and name != "gather_function"  # which an evaluation replaces
    }
    callbacks = {id(callback) for callback in handler.callbacks}
    return methods | {"callbacks": callbacks, "collector": (gc.isenabled(), gc.get_threshold(), list(gc.callbacks))}


class Before(TrainerCallback):
    """Looks at everything right before we begin."""

    def on_train_begin(self, args, state, control, **_):
        self.belongings = belongings(self.trainer)


def build(directory, *callbacks, late=None):
    before = Before()
    arguments = tiny.training_arguments(directory, **RUN)
    before.trainer = trainer = tiny.trainer(
        arguments, before, *callbacks, train_dataset=tiny.Tokens(32), eval_dataset=tiny.Tokens(4)
    )
    if late:
        trainer.add_callback(late)
    return trainer, before


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("place", PLACES)
def test_after_an_exception_everything_is_as_before_and_the_next_fit_is_measured(tmp_path, place, turn):
    error, order = ERRORS[turn], ORDERS[(turn + PLACES.index(place)) % 3]
    ours, bomb = PerfCallback(), Bomb(place, error)
    late = ours if order == "before ours, added late" else None
    callbacks = (ours, bomb) if order == "after ours" else (bomb, ours)
    trainer, before = build(tmp_path, *[callback for callback in callbacks if callback is not late], late=late)
    bomb.put(trainer, place)

    with pytest.raises(type(error)):
        trainer.train()
    assert belongings(trainer) == before.belongings

    journal = tmp_path / "perf_callbacks" / "rank0.jsonl"
    if place == "on_train_begin":
        assert not journal.exists()
    else:
        records = [entry.record for entry in attempts(read(journal))[0]]
        assert [type(record) for record in records if isinstance(record, Run | Summary)] == [Run, Summary]
        assert isinstance(records[-1], Summary)
        assert sum(len(record.step) for record in records if isinstance(record, Steps)) == records[-1].steps
        assert records[-1].failure == (None if place == "on_train_end" else describe(error))

    bomb.armed = False
    metrics = trainer.train().metrics
    assert belongings(trainer) == before.belongings
    assert "perf/step_time" in metrics
    assert (ours.summary.steps, ours.summary.failure) == (4, None)


def test_what_nobody_tells_us_of_is_put_back_by_the_next_fit(tmp_path):
    bomb = Bomb("the scheduler", RuntimeError("no more"))
    trainer, before = build(tmp_path, bomb, PerfCallback())
    bomb.put(trainer, "the scheduler")
    with pytest.raises(RuntimeError, match="no more"):
        trainer.train()
    bomb.armed = False
    assert "perf/step_time" in trainer.train().metrics
    assert belongings(trainer) == before.belongings
    (summary,) = tiny.records(tmp_path, Summary, attempt=0)
    assert summary.failure == ("RuntimeError: no more" if TOLD else "another fit began")


LOSSES = {"step", "loss", "grad_norm", "learning_rate", "eval_loss", "train_loss"}


def outcome(trainer):
    """What training came to, to the last bit."""
    losses = [{key: value for key, value in row.items() if key in LOSSES} for row in trainer.state.log_history]
    return losses, bits(trainer.model)


class Collecting(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        gc.collect(0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    trainer, _ = build(tmp_path_factory.mktemp("undisturbed"), Collecting())
    trainer.train()
    return outcome(trainer)


FAULTS = {
    "core.engine": "Engine.start Engine.stop",
    "core.tape.Tape": "begin read",
    "core.engine.Engine": "batch pause begin_span end_span end_step collect flush row whole amounts summary",
    "core.batches.BatchReader": "read",
    "core.ledger.Ledger": "take_row",
    "core.ratios": "metrics",
    "session.recorder": "opening earlier",
    "session.recorder.Recorder": "__init__",
    "doors.methods": "stages spans batches exits",
    "host.journal_file": "encode",
    "host.journal_file.FileJournal": "__init__ write flush close",
    "host.gc_observer.GcObserver": "install",
    "host.patches.Patches": "replace",
    "host.device": "timeline",
    "report.cards": "opening closing",
    "transformers": "find_trainer move_to_front _place",
    "doors.transformers_watch": "_overrides _outermost",
    "doors.transformers_watch.TransformersWatch": "install _end_steps _carry",
}


def warnings(caplog):
    return [
        record for record in caplog.records if record.name == "perf_callbacks" and record.levelno >= logging.WARNING
    ]


@pytest.mark.parametrize("reading", [*range(16), 21, 34, 55])
def test_a_mark_that_fails_costs_one_warning_and_nothing_else(tmp_path, monkeypatch, caplog, undisturbed, reading):
    class Failing(Recorder):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.clock, self.readings = self.broken, itertools.count()

        def broken(self):
            if next(self.readings) == reading:
                raise RuntimeError("a bug of ours")
            return time.perf_counter()

    monkeypatch.setattr("perf_callbacks.transformers.Recorder", Failing)
    trainer, before = build(tmp_path, Collecting(), PerfCallback())
    trainer.train()
    assert outcome(trainer) == undisturbed
    assert belongings(trainer) == before.belongings
    assert ["a bug of ours" in record.getMessage() for record in warnings(caplog)] == [True]


@pytest.mark.parametrize("first", [0, 1, 4], ids=["at once", "the second time", "later"])
@pytest.mark.parametrize("part", [f"{owner}.{name}" for owner, names in FAULTS.items() for name in names.split()])
def test_a_part_of_ours_that_breaks_costs_one_warning_and_nothing_else(  # noqa: PLR0917 fixtures
    tmp_path, monkeypatch, caplog, undisturbed, part, first
):
    inner, calls = pkgutil.resolve_name(f"perf_callbacks.{part}"), itertools.count()

    def broken(*args, **kwargs):
        if next(calls) >= first:
            raise RuntimeError("a bug of ours")
        return inner(*args, **kwargs)

    monkeypatch.setattr(f"perf_callbacks.{part}", broken)
    trainer, before = build(tmp_path, Collecting(), PerfCallback())
    trainer.train()
    assert outcome(trainer) == undisturbed
    assert belongings(trainer) == before.belongings
    reached = next(calls) > first
    assert reached or first
    assert ["a bug of ours" in record.getMessage() for record in warnings(caplog)] == [True] * reached


def test_measuring_changes_no_bit_of_what_training_comes_to(tmp_path, caplog, undisturbed):
    trainer, before = build(tmp_path, Collecting(), PerfCallback())
    trainer.train()
    assert outcome(trainer) == undisturbed
    assert belongings(trainer) == before.belongings
    assert warnings(caplog) == []
