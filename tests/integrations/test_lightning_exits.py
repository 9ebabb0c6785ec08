"""Ends that only a Lightning fit has: a `StopIteration`, another fit of the same trainer, hooks after a step."""

import pytest
from trainings import lightning_kit
from trainings.lightning_trainer import LightningTraining
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Summary


class Raise:
    """Raise an error in the third step."""

    armed = True

    def __call__(self, *_):
        if self.armed and self.training.step == 3:
            raise RuntimeError("no more")


def fit(directory, **options):
    act = Raise()
    act.training = LightningTraining(directory, "training_step", act, **LightningTraining.EVERYWHERE | options)
    return act.training, act


def test_a_second_fit_after_an_exception_goes_on_in_the_same_trainer(tmp_path):
    training, act = fit(tmp_path)
    with pytest.raises(RuntimeError, match="no more"):
        training.run()
    act.armed = False
    training.run()
    assert training.trainer.global_step == training.summary.step == 4
    assert training.summary.failure is None


def test_a_fit_that_hears_of_no_end_is_restored_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("perf_callbacks.integrations.methods.exits", lambda *_, **__: None)
    training, act = fit(tmp_path, loud=True)
    with pytest.raises(ValueError, match="and I fail as well"):
        training.run()
    before = training.before
    assert training.world() != before
    act.armed = training.other.loud = False
    training.run()
    assert training.world() == before
    (summary,) = records(tmp_path, Summary, attempt=0)
    assert summary.failure == "another fit began"


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end", "on_train_epoch_end"])
def test_a_stop_iteration_of_another_callback_has_its_usual_effect(tmp_path, hook):
    def stop(trainer, *_args, **_kwargs):
        if trainer.global_step == 2:
            raise StopIteration

    def outcome(directory, *callbacks):
        stopper = lightning_kit.tree().Callback()
        setattr(stopper, hook, stop)
        trainer = lightning_kit.trainer(directory, *callbacks, stopper, max_steps=-1, max_epochs=2)
        trainer.fit(lightning_kit.tree().Automatic(), lightning_kit.loader(12))
        return trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop._batches_that_stepped

    ours = lightning_kit.tree().PerfCallback()
    found = outcome(tmp_path / "with", ours)
    assert found == outcome(tmp_path / "without")
    assert ours.summary.steps == found[0]


def test_a_step_whose_hooks_raise_is_a_step_that_was_done(tmp_path):
    kinds = lightning_kit.tree()

    class Raises(kinds.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 3:
                raise RuntimeError("no more")

    ours = kinds.PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, ours, Raises())
    with pytest.raises(RuntimeError, match="no more"):
        trainer.fit(kinds.Automatic(), lightning_kit.loader())
    assert (ours.summary.steps, ours.summary.failure) == (3, "RuntimeError: no more")
