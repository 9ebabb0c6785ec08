"""What a trainer, its callbacks and its user may do while they are measured."""

import copy
import gc
import inspect
import pickle
import weakref

import pytest
from trainings import models
from trainings.runs import records
from trainings.transformers_trainer import SCHEDULER_IS_WATCHED, TransformersTraining, scheduler
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState

from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.transformers import PerfCallback


class Joining(TrainerCallback):
    """Brings another callback along when training begins."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.other = Seeing()

    def on_train_begin(self, args, state, control, **_):
        self.trainer.add_callback(self.other)


class Seeing(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_train_begin(self, args, state, control, **_):
        self.seen.append("begin")

    def on_train_end(self, args, state, control, **_):
        self.seen.append("end")


def test_a_callback_that_joins_when_training_begins_misses_nothing(tmp_path):
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=2), PerfCallback())
    joining = Joining(trainer)
    trainer.add_callback(joining)
    trainer.train()
    assert joining.other.seen == ["begin", "end"]
    assert type(trainer.callback_handler.callbacks) is list


class ByHand(Trainer):
    """Calls the model and the backward itself, past the methods that are there for it."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = model(**inputs).loss
        loss.backward()
        return loss.detach()


def test_a_stage_in_a_trainers_own_way_is_left_out_and_not_0(tmp_path):
    trainer = models.trainer(models.training_arguments(tmp_path), PerfCallback(), kind=ByHand)
    trainer.train()
    row = trainer.state.log_history[4]  # it is counted twice: how its model is called is not known at first
    assert {"perf/forward_time", "perf/backward_time"}.isdisjoint(row)
    assert min(row["perf/data_time"], row["perf/optimizer_time"]) > 0


class Signatures(TrainerCallback):
    def __init__(self, trainer):
        self.trainer = trainer

    def read(self):
        names = ("training_step", "compute_loss", "evaluate", "get_batch_samples", "_save_checkpoint")
        return {name: str(inspect.signature(getattr(self.trainer, name))) for name in names}

    def on_step_end(self, args, state, control, **_):
        self.inside = self.read()


def test_methods_keep_their_signatures_while_they_are_watched(tmp_path):
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=1), PerfCallback())
    signatures = Signatures(trainer)
    before = signatures.read()
    trainer.add_callback(signatures)
    trainer.train()
    assert signatures.inside == before


class Scheduling(TrainerCallback):
    """Makes a scheduler of its own, in the middle of training."""

    def on_step_begin(self, args, state, control, optimizer=None, **_):
        from torch.optim.lr_scheduler import LambdaLR

        self.scheduler = LambdaLR(optimizer, lambda _: 1.0)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step\\(\\)` before:UserWarning")
def test_a_scheduler_can_be_made_of_a_watched_optimizer(tmp_path):
    callback = PerfCallback()
    models.trainer(models.training_arguments(tmp_path, max_steps=2), callback, Scheduling()).train()
    assert (callback.summary.steps, callback.summary.failure) == (2, None)


class Leaving(TrainerCallback):
    """Takes us out in the middle of training."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_end(self, args, state, control, **_):
        self.trainer.remove_callback(PerfCallback)


@pytest.mark.skipif(
    not hasattr(Trainer, "_finalize_training"), reason="transformers 4 has no call that is the last one"
)
def test_taken_out_in_the_middle_of_training_leaves_nothing_behind(tmp_path):
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), PerfCallback())
    trainer.add_callback(Leaving(trainer))
    found = set(vars(trainer)), list(gc.callbacks)
    trainer.train()
    assert {name for name in vars(trainer) if inspect.ismethod(vars(trainer)[name])} == set()
    assert list(gc.callbacks) == found[1]


class Interrupted(TrainerCallback):
    """An interrupt where nothing is watched on transformers 4: in the scheduler."""

    def on_pre_optimizer_step(self, args, state, control, lr_scheduler=None, **_):
        def step(*_):
            raise KeyboardInterrupt

        lr_scheduler.step = step


def test_a_trainer_that_was_interrupted_anywhere_can_be_freed(tmp_path):
    found = list(gc.callbacks)
    trainer = models.trainer(models.training_arguments(tmp_path), PerfCallback(), Interrupted())
    model = weakref.ref(trainer.model)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    del trainer
    gc.collect()
    assert (model(), gc.callbacks) == (None, found)


def test_of_two_in_one_trainer_only_one_measures(tmp_path, caplog):
    callbacks = [PerfCallback(), PerfCallback()]
    trainer = models.trainer(models.training_arguments(tmp_path), *callbacks)
    trainer.train()
    assert sorted(callback.summary is not None for callback in callbacks) == [False, True]
    ours = [record.getMessage() for record in caplog.records if record.name == "perf_callbacks"]
    assert ours == ["perf_callbacks: another PerfCallback measures this trainer, this one does nothing."]
    assert "perf/step_time" in trainer.state.log_history[2]


def test_of_two_the_first_that_still_works_measures(tmp_path, caplog):
    callbacks = [PerfCallback(), PerfCallback()]
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), *callbacks)
    first = next(one for one in trainer.callback_handler.callbacks if isinstance(one, PerfCallback))
    first.fail(RuntimeError("a bug of ours"))
    trainer.train()
    (second,) = (one for one in callbacks if one is not first)
    assert (first.summary, second.summary.steps) == (None, 3)
    assert not any("another PerfCallback measures" in record.getMessage() for record in caplog.records)


def test_the_list_of_callbacks_is_the_one_that_it_was(tmp_path):
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=2), PerfCallback())
    callbacks = trainer.callback_handler.callbacks
    before = [*callbacks]
    trainer.train()
    assert trainer.callback_handler.callbacks is callbacks
    assert callbacks == before


def test_a_callback_without_a_trainer_measures_nothing_and_says_so(tmp_path, caplog):
    ours, state, control = PerfCallback(), TrainerState(), TrainerControl()
    arguments = models.training_arguments(tmp_path)
    for hook in (
        "on_init_end",
        "on_train_begin",
        "on_step_begin",
        "on_step_end",
        "on_evaluate",
        "on_save",
        "on_train_end",
    ):
        getattr(ours, hook)(arguments, state, control)
    assert ours.summary is None
    assert [record.getMessage() for record in caplog.records] == [
        "perf_callbacks measures nothing: this PerfCallback is in no transformers.Trainer."
    ]
    assert not [*tmp_path.rglob("rank*.jsonl")]


def test_a_callback_pickles_before_in_and_after_training(tmp_path):
    class Pickling(TrainerCallback):
        loaded: list = []  # noqa: RUF012 there is one

        def on_step_end(self, args, state, control, **_):
            self.loaded.append(pickle.loads(pickle.dumps(ours)))

    ours = PerfCallback()
    trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), ours, Pickling())
    trainer.train()
    again = [pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), *Pickling.loaded]
    assert [(one.enabled, one.summary) for one in again] == [(True, None)] * 5
    assert ours.summary.steps == 3


def test_a_trainer_is_freed_after_training_without_a_garbage_collection(tmp_path):
    ours = PerfCallback()
    gc.disable()
    try:
        trainer = models.trainer(models.training_arguments(tmp_path, max_steps=3), ours)
        trainer.train()
        gone = [weakref.ref(one) for one in (trainer, trainer.model, trainer.optimizer)]
        gc.disable()
        del trainer
        assert [one() for one in gone] == [None] * 3
    finally:
        gc.enable()
    assert ours.summary.steps == 3


def test_an_error_in_the_scheduler_is_undone_by_the_next_fit(tmp_path):
    def act():
        if armed and training.step == 3:
            raise RuntimeError("no more")

    training, armed = TransformersTraining(tmp_path, accumulate=2), [True]
    scheduler(training, act)
    with pytest.raises(RuntimeError, match="no more"):
        training.run()
    armed.clear()
    training.run()
    assert training.world() == training.before
    (summary,) = records(tmp_path, Summary, attempt=0)
    assert summary.failure == ("RuntimeError: no more" if SCHEDULER_IS_WATCHED else "another fit began")
