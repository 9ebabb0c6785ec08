"""Lightning's checkpoints: their keys, weights alone, tuners, a second fit of the same trainer or callback."""

import pytest
import torch
from trainings import lightning_kit, runs
from trainings.lightning_trainer import LightningTraining
from trainings.runs import numbers, opened, totals

from perf_callbacks import PerfConfig


def fit(directory, *, until, **options):
    """Train until a step, saving a checkpoint after every second step."""
    return LightningTraining(directory, steps=until, save=2, **options).run().trainer


BOTH = pytest.mark.parametrize("of", lightning_kit.FRAMEWORKS)


pytestmark = pytest.mark.filterwarnings(
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:Using ModelCheckpoint with manual optimization and every_n_train_steps",
    "ignore:Be aware that when using `ckpt_path`",
)


def test_rows_of_a_resumed_run_stand_at_the_step_of_the_loss(tmp_path):
    kinds, config = lightning_kit.tree(), PerfConfig(flops="off")
    fit(tmp_path, ours=kinds.PerfCallback(config), until=4, accumulate=2)
    logging = {"logger": kinds.CSVLogger(tmp_path / "resumed")}
    fit(tmp_path, ours=kinds.PerfCallback(config), until=8, resume=4, accumulate=2, trainer=logging)
    lines = lightning_kit.logged(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == [4, 5, 6, 7]
    assert [line["step"] for line in lines if "perf/step_time" in line] == [5, 7]  # a checkpoint fell in the other one


def test_a_checkpoint_holds_plain_values_under_a_key_of_its_own(tmp_path):
    ours = lightning_kit.tree().PerfCallback()
    fit(tmp_path, callbacks=[lightning_kit.tree().PerfCallback()], ours=ours, until=2)
    checkpoint = torch.load(tmp_path / "checkpoint-2.ckpt", weights_only=True)
    ours_saved = checkpoint["perf_callbacks"]
    times = {"started_unix", "first_unix", "elapsed_seconds", "productive_seconds"}
    assert all(type(ours_saved.pop(name)) is float for name in times)
    assert ours_saved == {
        "run_id": ours.summary.run_id,
        "attempt": 1,
        "rank": 0,
        "step": 2,
        "samples": 8,
        "tokens": None,
    }
    assert not [key for key in checkpoint["callbacks"] if "Perf" in key]


def test_a_checkpoint_of_weights_alone_is_without_us(tmp_path):
    ours = lightning_kit.tree().PerfCallback()
    trainer = fit(tmp_path, ours=ours, until=2)
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert "perf_callbacks" not in torch.load(tmp_path / "weights.ckpt", weights_only=True)
    trainer.validate(
        lightning_kit.tree().Automatic(), lightning_kit.loader(), ckpt_path=tmp_path / "weights.ckpt", verbose=False
    )
    assert ours.summary.steps == 2


def test_a_checkpoint_loaded_to_validate_it_changes_nothing(tmp_path):
    ours = lightning_kit.tree().PerfCallback()
    trainer = fit(tmp_path, ours=ours, until=4)
    before = ours.summary
    trainer.validate(ckpt_path=tmp_path / "checkpoint-2.ckpt", dataloaders=lightning_kit.loader(), verbose=False)
    assert ours.summary == before


@BOTH
def test_a_second_fit_of_the_same_trainer_goes_on(tmp_path, of):
    kinds = lightning_kit.tree(of)
    ours, module = kinds.PerfCallback(), kinds.Automatic()
    trainer = lightning_kit.trainer(tmp_path, ours, of=of, max_steps=4)
    trainer.fit(module, lightning_kit.loader())
    trainer.fit_loop.epoch_loop.max_steps = 6
    trainer.fit(module, lightning_kit.loader())
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert len({run.run_id for run in opened(tmp_path)}) == 1
    assert totals(tmp_path) == [(16, None), (24, None)]


def test_the_same_callback_in_another_trainer_begins_anew(tmp_path):
    ours = lightning_kit.tree().PerfCallback()
    fit(tmp_path, ours=ours, until=4)
    fit(tmp_path, ours=ours, until=4)
    assert numbers(tmp_path) == [(1, 0), (1, 0)]
    assert len({run.run_id for run in opened(tmp_path)}) == 2
    assert totals(tmp_path) == [(16, None), (16, None)]


@pytest.mark.parametrize("finder", ["BatchSizeFinder", "LearningRateFinder"])
def test_the_trials_of_a_tuner_do_not_count(tmp_path, finder):
    class Module(lightning_kit.tree().Automatic):
        def __init__(self):
            super().__init__()
            self.batch_size, self.lr = 4, 0.1

        def train_dataloader(self):
            return lightning_kit.loader(40, self.batch_size)

        def val_dataloader(self):
            return lightning_kit.loader(4)

    options = {"max_trials": 1, "steps_per_trial": 2} if finder == "BatchSizeFinder" else {"num_training_steps": 3}
    ours = lightning_kit.tree().PerfCallback()
    trainer = lightning_kit.trainer(tmp_path, getattr(lightning_kit.tree().callbacks, finder)(**options), ours)
    module = Module()
    trainer.fit(module)
    assert [step["step"] for step in runs.steps(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert numbers(tmp_path) == [(1, 0)]
    assert totals(tmp_path) == [(6 * module.batch_size, None)]


def test_a_checkpoint_before_the_first_step_has_the_loaded_counters(tmp_path):
    class Trying(lightning_kit.tree().Callback):
        def on_fit_start(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "trial.ckpt")

    fit(tmp_path, until=4)
    fit(tmp_path, callbacks=[Trying()], until=8, resume=4)
    paths = tmp_path / "checkpoint-4.ckpt", tmp_path / "trial.ckpt"
    loaded, tried = [torch.load(path, weights_only=True) for path in paths]
    assert tried["perf_callbacks"] == loaded["perf_callbacks"]
