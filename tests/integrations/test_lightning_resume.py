"""What goes on from one attempt to the next with Lightning's checkpoints, and what is no attempt at all."""

import pytest
import tiny
import tiny_lightning
import torch

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.records.codec import attempts
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.journal_file import read

BOTH = pytest.mark.parametrize("of", tiny_lightning.FRAMEWORKS)


pytestmark = pytest.mark.filterwarnings(
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:Using ModelCheckpoint with manual optimization and every_n_train_steps",
    "ignore:Be aware that when using `ckpt_path`",
)


def fit(directory, ours, *others, until, ckpt_path=None, of="lightning", module="Automatic", **options):
    """In a trainer of its own, from a checkpoint on; leaves one every second step."""
    kinds = tiny_lightning.tree(of)
    save = kinds.callbacks.ModelCheckpoint(
        dirpath=directory / "saved",
        every_n_train_steps=2 * (1 + (module == "Manual")),
        save_top_k=-1,
        filename="{step}",
    )
    many = 2 if module == "Manual" else 1
    callbacks = [*([ours] if ours else []), *others, save]
    usual = {"enable_checkpointing": True, "max_steps": until * many}
    trainer = tiny_lightning.trainer(directory, *callbacks, of=of, **usual | options)
    trainer.fit(getattr(kinds, module)(), tiny_lightning.loader(40), ckpt_path=ckpt_path)
    return trainer


def saved(directory, step):
    (path,) = directory.glob(f"saved/step={step}.ckpt")
    return path


def opened(directory):
    """How each attempt in the journal began."""
    (*parts,) = attempts(read(directory / "perf_callbacks" / "rank0.jsonl"))
    return [part[0].record for part in parts]


def totals(directory):
    summaries = [tiny.records(directory, Summary, attempt=number) for number in range(len(opened(directory)))]
    return [one.total_samples for (one,) in summaries]


@BOTH
@pytest.mark.parametrize("module", ["Automatic", "Manual"])
def test_a_resumed_run_goes_on_in_id_steps_and_totals(tmp_path, of, module):
    callback, many = tiny_lightning.tree(of).PerfCallback, 2 if module == "Manual" else 1
    options = {"of": of, "module": module}
    fit(tmp_path, callback(), until=4, **options)
    fit(tmp_path, callback(), until=8, ckpt_path=saved(tmp_path, 4 * many), **options)
    fit(tmp_path, callback(), until=12, ckpt_path=saved(tmp_path, 8 * many), **options)
    runs = opened(tmp_path)
    assert [(run.attempt, run.step) for run in runs] == [(1, 0), (2, 4), (3, 8)]
    assert len({run.run_id for run in runs}) == 1
    steps = [tiny.steps(tmp_path, attempt=number) for number in range(3)]
    assert [step["step"] for attempt in steps for step in attempt] == list(range(1, 13))
    assert [attempt[0]["excluded"] for attempt in steps] == ["first", "restart", "restart"]
    assert totals(tmp_path) == [16, 32, 48]


def test_rows_of_a_resumed_run_stand_at_the_step_of_the_loss(tmp_path):
    kinds, config = tiny_lightning.tree(), PerfConfig(flops="off")
    options = {"accumulate_grad_batches": 2}
    fit(tmp_path, kinds.PerfCallback(config), until=4, **options)
    options["logger"] = kinds.CSVLogger(tmp_path / "resumed")
    fit(tmp_path, kinds.PerfCallback(config), until=8, ckpt_path=saved(tmp_path, 4), **options)
    lines = tiny_lightning.logged(tmp_path)
    assert [line["step"] for line in lines if "loss" in line] == [4, 5, 6, 7]
    assert [line["step"] for line in lines if "perf/step_time" in line] == [5, 7]  # a checkpoint fell in the other one


def test_a_resume_from_an_earlier_checkpoint_counts_from_there(tmp_path):
    fit(tmp_path, tiny_lightning.tree().PerfCallback(), until=6)
    fit(tmp_path, tiny_lightning.tree().PerfCallback(), until=8, ckpt_path=saved(tmp_path, 2))
    assert [(run.attempt, run.step) for run in opened(tmp_path)] == [(1, 0), (2, 2)]
    assert totals(tmp_path) == [24, 32]


def test_a_run_that_is_resumed_without_us_goes_on_without_us(tmp_path):
    fit(tmp_path, tiny_lightning.tree().PerfCallback(), until=4)
    trainer = fit(tmp_path, None, until=8, ckpt_path=saved(tmp_path, 4))
    assert trainer.global_step == 8
    assert len(opened(tmp_path)) == 1


def test_a_stretch_without_us_leaves_the_totals_unknown(tmp_path):
    fit(tmp_path, None, until=4)
    fit(tmp_path, tiny_lightning.tree().PerfCallback(), until=8, ckpt_path=saved(tmp_path, 4))
    fit(tmp_path, tiny_lightning.tree().PerfCallback(), until=10, ckpt_path=saved(tmp_path, 8))
    assert [(run.attempt, run.step) for run in opened(tmp_path)] == [(1, 4), (2, 8)]
    assert totals(tmp_path) == [None, None]


def test_a_checkpoint_holds_plain_values_under_a_key_of_its_own(tmp_path):
    ours = tiny_lightning.tree().PerfCallback()
    fit(tmp_path, ours, tiny_lightning.tree().PerfCallback(), until=2)
    checkpoint = torch.load(saved(tmp_path, 2), weights_only=True)
    assert checkpoint["perf_callbacks"] == {
        "run_id": ours.summary.run_id,
        "attempt": 1,
        "rank": 0,
        "step": 2,
        "samples": 8,
        "tokens": None,
    }
    assert not [key for key in checkpoint["callbacks"] if "Perf" in key]


def test_a_checkpoint_of_weights_alone_is_without_us(tmp_path):
    ours = tiny_lightning.tree().PerfCallback()
    trainer = fit(tmp_path, ours, until=2)
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert "perf_callbacks" not in torch.load(tmp_path / "weights.ckpt", weights_only=True)
    trainer.validate(
        tiny_lightning.tree().Automatic(), tiny_lightning.loader(), ckpt_path=tmp_path / "weights.ckpt", verbose=False
    )
    assert ours.summary.steps == 2


def test_a_checkpoint_that_is_loaded_to_test_it_changes_nothing(tmp_path):
    ours = tiny_lightning.tree().PerfCallback()
    trainer = fit(tmp_path, ours, until=4)
    before = ours.summary
    trainer.validate(ckpt_path=saved(tmp_path, 2), dataloaders=tiny_lightning.loader(), verbose=False)
    assert ours.summary == before


@BOTH
def test_a_second_fit_of_the_same_trainer_goes_on(tmp_path, of):
    kinds = tiny_lightning.tree(of)
    ours, module = kinds.PerfCallback(), kinds.Automatic()
    trainer = tiny_lightning.trainer(tmp_path, ours, of=of, max_steps=4)
    trainer.fit(module, tiny_lightning.loader())
    trainer.fit_loop.epoch_loop.max_steps = 6
    trainer.fit(module, tiny_lightning.loader())
    assert [(run.attempt, run.step) for run in opened(tmp_path)] == [(1, 0), (2, 4)]
    assert len({run.run_id for run in opened(tmp_path)}) == 1
    assert totals(tmp_path) == [16, 24]


def test_the_same_callback_in_another_trainer_begins_anew(tmp_path):
    ours = tiny_lightning.tree().PerfCallback()
    fit(tmp_path, ours, until=4)
    fit(tmp_path, ours, until=4)
    assert [(run.attempt, run.step) for run in opened(tmp_path)] == [(1, 0), (1, 0)]
    assert len({run.run_id for run in opened(tmp_path)}) == 2
    assert totals(tmp_path) == [16, 16]


@pytest.mark.parametrize("finder", ["BatchSizeFinder", "LearningRateFinder"])
def test_the_trials_of_a_tuner_do_not_count(tmp_path, finder):
    class Module(tiny_lightning.tree().Automatic):
        def __init__(self):
            super().__init__()
            self.batch_size, self.lr = 4, 0.1

        def train_dataloader(self):
            return tiny_lightning.loader(40, self.batch_size)

        def val_dataloader(self):
            return tiny_lightning.loader(4)

    options = {"max_trials": 1, "steps_per_trial": 2} if finder == "BatchSizeFinder" else {"num_training_steps": 3}
    ours = tiny_lightning.tree().PerfCallback()
    trainer = tiny_lightning.trainer(tmp_path, getattr(tiny_lightning.tree().callbacks, finder)(**options), ours)
    module = Module()
    trainer.fit(module)
    assert [step["step"] for step in tiny.steps(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert [(run.attempt, run.step) for run in opened(tmp_path)] == [(1, 0)]
    assert totals(tmp_path) == [6 * module.batch_size]


def test_a_checkpoint_between_loading_one_and_the_first_step_carries_on_what_was_loaded(tmp_path):
    class Trying(tiny_lightning.tree().Callback):
        def on_fit_start(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / "trial.ckpt")

    fit(tmp_path, tiny_lightning.tree().PerfCallback(), until=4)
    fit(tmp_path, tiny_lightning.tree().PerfCallback(), Trying(), until=8, ckpt_path=saved(tmp_path, 4))
    loaded, tried = [torch.load(path, weights_only=True) for path in (saved(tmp_path, 4), tmp_path / "trial.ckpt")]
    assert tried["perf_callbacks"] == loaded["perf_callbacks"]
