"""However training ends, and whatever breaks in us: everything is as it was, and training never notices."""

import gc

import pytest
import tiny
import torch
from counted import bits
from faults import ERRORS, Fault, as_found, break_clock, ended, faults, warnings
from sampling import sampled
from transformers import Trainer, TrainerCallback

from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.records.fit_records import Summary
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
    """Functions, hooks and callbacks on the objects of a trainer, and the state of the process."""
    handler, optimizer = trainer.callback_handler, trainer.optimizer
    owners = (trainer, handler, handler.train_dataloader, trainer.accelerator, trainer.lr_scheduler, trainer.model)
    found = as_found(*owners, optimizer, optimizer.optimizer, but={"gather_function"})  # which an evaluation replaces
    return found | {"callbacks": {id(callback) for callback in handler.callbacks}}


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


@pytest.mark.parametrize(("place", "order", "error"), sampled(PLACES, ORDERS, ERRORS))
def test_after_an_exception_everything_is_as_before_and_the_next_fit_is_measured(tmp_path, place, order, error):
    ours, bomb = PerfCallback(), Bomb(place, error)
    late = ours if order == "before ours, added late" else None
    callbacks = (ours, bomb) if order == "after ours" else (bomb, ours)
    trainer, before = build(tmp_path, *[callback for callback in callbacks if callback is not late], late=late)
    bomb.put(trainer, place)

    with pytest.raises(type(error)):
        trainer.train()
    assert belongings(trainer) == before.belongings

    if place == "on_train_begin":
        assert not (tmp_path / "perf_callbacks").exists()
    else:
        assert ended(tmp_path).failure == (None if place == "on_train_end" else describe(error))

    bomb.armed = False
    metrics = trainer.train().metrics
    assert belongings(trainer) == before.belongings
    assert "perf/run/step_time" in metrics
    assert (ours.summary.steps, ours.summary.failure) == (4, None)


def test_what_nobody_tells_us_of_is_put_back_by_the_next_fit(tmp_path):
    bomb = Bomb("the scheduler", RuntimeError("no more"))
    trainer, before = build(tmp_path, bomb, PerfCallback())
    bomb.put(trainer, "the scheduler")
    with pytest.raises(RuntimeError, match="no more"):
        trainer.train()
    bomb.armed = False
    assert "perf/run/step_time" in trainer.train().metrics
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


FAULTS = faults(
    often={
        "kernel.engine.ledger.Ledger": "take_row",
        "kernel.engine.ratios": "metrics",
        "integrations.methods": "spans exits",
    },
    twice={"transformers": "find_trainer move_to_front", "integrations.transformers_watch.TransformersWatch": "_carry"},
    once={
        "kernel.engine.engine.Engine": "whole",
        "integrations.methods": "batches",
        "transformers": "_place",
        "integrations.transformers_watch": "_overrides _outermost",
        "integrations.transformers_watch.TransformersWatch": "install _end_steps",
    },
    turn=1,
)


@pytest.mark.parametrize("reading", [*range(16), 21, 34, 55])
def test_a_mark_that_fails_costs_one_warning_and_nothing_else(tmp_path, monkeypatch, caplog, undisturbed, reading):
    break_clock(monkeypatch, reading)
    trainer, before = build(tmp_path, Collecting(), PerfCallback())
    trainer.train()
    assert outcome(trainer) == undisturbed
    assert belongings(trainer) == before.belongings
    assert ["a bug of ours" in text for text in warnings(caplog)] == [True]


@pytest.mark.parametrize(("part", "first"), FAULTS)
def test_a_part_of_ours_that_breaks_costs_one_warning_and_nothing_else(  # noqa: PLR0917 fixtures
    tmp_path, monkeypatch, caplog, undisturbed, part, first
):
    fault = Fault(monkeypatch, part, first)
    trainer, before = build(tmp_path, Collecting(), PerfCallback())
    trainer.train()
    assert outcome(trainer) == undisturbed
    assert belongings(trainer) == before.belongings
    assert fault.happened
    assert ["a bug of ours" in text for text in warnings(caplog)] == [True]


def test_measuring_changes_no_bit_of_what_training_comes_to(tmp_path, caplog, undisturbed):
    trainer, before = build(tmp_path, Collecting(), PerfCallback())
    trainer.train()
    assert outcome(trainer) == undisturbed
    assert belongings(trainer) == before.belongings
    assert warnings(caplog) == []
