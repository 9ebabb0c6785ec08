"""Arguments that make evaluations and checkpoints rarer, as the trainer of a program accepts them."""

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins import Precision
from trainings import lightning_kit, models

from perf_callbacks.integrations.lightning import options as of_lightning
from perf_callbacks.integrations.transformers import options as of_transformers
from perf_callbacks.kernel.engine.account import CHECKPOINT, EVALUATION
from perf_callbacks.kernel.fit.rarer import Rarer

PLATEAU = "Trainer(check_val_every_n_epoch=3), and frequency={} in the configuration of ReduceLROnPlateau"


def written(directory, *callbacks, apart=6, scheduler=None, **arguments):
    """The sentences for a third of the evaluations and checkpoints, which were `apart` steps apart, and the options."""
    kinds = lightning_kit.tree()
    sentences = {}

    class Module(kinds.Automatic):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
            if scheduler is None:
                return optimizer
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss", **scheduler}}

        def on_train_start(self):
            rarer = of_lightning.rarer(self.trainer)
            sentences.update({kind: how.written(3 * apart, 3) for kind, how in rarer.items()})
            sentences["options"] = of_lightning.effective(self.trainer)

    arguments = {"max_epochs": 1, "max_steps": -1, "enable_checkpointing": True, **arguments}
    trainer = lightning_kit.trainer(directory, *callbacks, **arguments)
    trainer.fit(Module(), lightning_kit.loader(), lightning_kit.loader())
    return sentences


@pytest.mark.parametrize(
    ("stopping", "sentence"),
    [
        ({"check_on_train_epoch_end": True}, None),
        ({"check_on_train_epoch_end": True, "strict": False}, "Trainer(check_val_every_n_epoch=3)"),
        ({"check_on_train_epoch_end": False}, "Trainer(check_val_every_n_epoch=3)"),
    ],
)
def test_validation_stays_where_early_stopping_needs_it_in_each_epoch(tmp_path, stopping, sentence):
    assert written(tmp_path, EarlyStopping("val_loss", **stopping)).get(EVALUATION) == sentence


@pytest.mark.parametrize(
    ("scheduler", "sentence"),
    [
        ({"frequency": 2}, PLATEAU.format(6)),
        ({}, PLATEAU.format(3)),
        ({"interval": "step", "frequency": 50}, None),
    ],
)
def test_validation_is_as_rare_as_steps_of_the_plateau(tmp_path, scheduler, sentence):
    assert written(tmp_path, scheduler=scheduler).get(EVALUATION) == sentence


def test_precision_has_no_effect_beside_a_plugin_of_the_program(tmp_path):
    class Own(Precision):
        """Lightning takes either this or the argument `precision`."""

    assert "precision" not in written(tmp_path, plugins=[Own()])["options"]
    assert "precision" in written(tmp_path / "usual")["options"]


@pytest.mark.parametrize(("apart", "known"), [(6, True), (3, True), (1, False)])
def test_lightnings_arguments_are_named_for_spans_of_their_own(tmp_path, apart, known):
    saving = ModelCheckpoint(dirpath=tmp_path, every_n_epochs=1)
    said = written(tmp_path, saving, apart=apart)
    plain = f"one after every {3 * apart} steps"
    assert said[CHECKPOINT] == ("ModelCheckpoint(every_n_epochs=3)" if known else plain)
    assert said[EVALUATION] == ("Trainer(check_val_every_n_epoch=3)" if known else plain)


@pytest.mark.parametrize(("apart", "sentence"), [(300, "TrainingArguments(save_steps=900)"), (2, None)])
def test_save_steps_is_named_for_saves_of_the_trainer(tmp_path, apart, sentence):
    rarer = of_transformers.rarer(models.training_arguments(tmp_path, save_strategy="steps", save_steps=500))
    assert rarer[CHECKPOINT].written(3 * apart, 3) == (sentence or "one after every 6 steps")
    assert Rarer("TrainingArguments(save_steps={steps})").written(6, 3) == "TrainingArguments(save_steps=6)"
