"""What a fit of Lightning's hands to others, and leaves behind, is what it would be without us."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from trainings import lightning_kit, runs

BOTH = pytest.mark.parametrize("of", lightning_kit.FRAMEWORKS)


def own_kind(of, kind, **members):
    tree = lightning_kit.tree(of)
    return type(kind, (getattr(tree, kind),), members)()


def test_the_step_of_the_module_gets_the_closure_of_lightning(tmp_path):
    from lightning.pytorch.loops.optimization.automatic import Closure

    seen = []

    def optimizer_step(module, epoch, batch_idx, optimizer, optimizer_closure):
        seen.append((optimizer_closure, type(optimizer_closure)))
        optimizer.step(closure=optimizer_closure)

    ours = lightning_kit.tree().PerfCallback()
    module = own_kind("lightning", "Automatic", optimizer_step=optimizer_step)
    lightning_kit.trainer(tmp_path, ours).fit(module, lightning_kit.loader())
    assert [kind for _, kind in seen] == [Closure] * 6
    assert not any("closure" in vars(closure) for closure, _ in seen)
    assert all(step["forward_time"] > 0 for step in runs.steps(tmp_path))


def test_a_step_that_fails_leaves_the_closure_as_it_was(tmp_path):
    seen = []

    def optimizer_step(module, epoch, batch_idx, optimizer, optimizer_closure):
        seen.append(optimizer_closure)
        optimizer.step(closure=optimizer_closure)
        if batch_idx == 2:
            raise RuntimeError("no")

    module = own_kind("lightning", "Automatic", optimizer_step=optimizer_step)
    with pytest.raises(RuntimeError, match="no"):
        lightning_kit.trainer(tmp_path, lightning_kit.tree().PerfCallback()).fit(module, lightning_kit.loader())
    assert len(seen) == 3
    assert not any("closure" in vars(closure) for closure in seen)


@pytest.mark.parametrize("of", lightning_kit.FRAMEWORKS)
def test_loggers_get_metrics_by_name(tmp_path, of):
    logger = lightning_kit.tree(of).CSVLogger(tmp_path)
    rows, inner = [], logger.log_metrics
    logger.log_metrics = lambda **named: (rows.append(named), inner(**named))
    lightning_kit.trainer(tmp_path, lightning_kit.tree(of).PerfCallback(), of=of, logger=logger).fit(
        lightning_kit.tree(of).Automatic(), lightning_kit.loader()
    )
    assert any("perf/step_time" in row["metrics"] for row in rows)
    assert {*map(frozenset, rows)} == {frozenset({"metrics", "step"})}


class Fails:
    """A callback that fails in one hook."""

    def __init__(self, where):
        self.where = where

    def __call__(self, of):
        def fail(*_):
            raise RuntimeError(self.where)

        return type("Failing", (lightning_kit.tree(of).Callback,), {self.where: fail})()


@pytest.mark.parametrize("where", [None, "on_train_start", "on_train_batch_end"])
def test_the_list_of_callbacks_is_the_one_that_it_was(tmp_path, where):
    other = lightning_kit.tree().Callback() if where is None else Fails(where)("lightning")
    trainer = lightning_kit.trainer(tmp_path, lightning_kit.tree().PerfCallback(), other)
    callbacks = trainer.callbacks
    before = [*callbacks]
    try:
        trainer.fit(lightning_kit.tree().Automatic(), lightning_kit.loader())
    except RuntimeError as error:
        assert str(error) == where  # noqa: PT017 it may raise
    assert trainer.callbacks is callbacks
    assert callbacks == before


class Copying:
    """Pickles and copies everything in mid-fit."""

    def __init__(self, of):
        self.kept = []
        self.callback = type(
            "Copying", (lightning_kit.tree(of).Callback,), {"on_train_batch_end": self.at}
        )()  # a bound method

    def at(self, trainer, module, _outputs, _batch, batch_idx):
        if batch_idx == 3:
            self.kept = [
                copy.deepcopy(module),
                copy.deepcopy(trainer.optimizers[0]),
                copy.copy(trainer.train_dataloader),
                pickle.loads(pickle.dumps(trainer.strategy.precision_plugin)),
                pickle.loads(pickle.dumps(trainer.optimizers[0])),
                copy.deepcopy(trainer),
            ]


def test_what_is_copied_in_mid_fit_works(tmp_path):
    copying = Copying("lightning")
    ours = lightning_kit.tree().PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, ours, copying.callback)
    trainer.fit(lightning_kit.tree().Automatic(), lightning_kit.loader())
    module, optimizer, loader, plugin, loaded, again = copying.kept
    assert ours.summary.steps == 6
    module.net(torch.ones(1, 4))
    for one in (optimizer, loaded):
        one.zero_grad()
        one.step()
    assert len([*loader]) == 6
    assert type(plugin) is type(trainer.strategy.precision_plugin)
    assert ours.summary.steps == 6
    assert type(again.callbacks) is list


@BOTH
def test_a_trainer_and_its_module_are_freed_though_the_callback_is_kept(tmp_path, of):
    ours = lightning_kit.tree(of).PerfCallback()

    def fit():
        trainer, module = lightning_kit.trainer(tmp_path, ours, of=of), lightning_kit.tree(of).Automatic()
        trainer.fit(module, lightning_kit.loader())
        return [weakref.ref(one) for one in (trainer, module, module.net, trainer.optimizers[0])]

    gone = fit()
    del ours.log, ours.log_dict  # the trainer puts the module's own on every callback
    gc.collect()
    assert [one() for one in gone] == [None] * 4
    assert ours.summary.steps == 6
