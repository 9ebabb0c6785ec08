"""Wrong uses of each way in, and the sentence that each of them gets."""

import accelerate
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer as LightningTrainer
from rows import each_row
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import perf_callbacks.accelerate
import perf_callbacks.lightning
import perf_callbacks.pytorch_lightning
import perf_callbacks.transformers
from perf_callbacks import ConfigError, PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.loop import measure

HF, LIGHTNING = perf_callbacks.transformers.PerfCallback, perf_callbacks.lightning.PerfCallback
PYTORCH_LIGHTNING = perf_callbacks.pytorch_lightning.PerfCallback


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch, _):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning_fit(callback, directory):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = LightningTrainer(max_steps=1, callbacks=[callback], default_root_dir=directory, **options)
    trainer.fit(Module(), DataLoader(torch.ones(4, 2)))


def trainer_of(callback, directory):
    arguments = TrainingArguments(output_dir=str(directory), report_to=[], use_cpu=True)
    return Trainer(model=nn.Linear(2, 2), args=arguments, callbacks=[callback])


def measured(**wrong):
    model = nn.Linear(2, 1)
    right = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loader": [torch.ones(4, 2)]}
    return measure(**(right | wrong))


def attached(*wrong, **strays):
    return attach(accelerate.Accelerator(cpu=True), *wrong, **strays)


def import_callback(_):
    from perf_callbacks import PerfCallback  # noqa: F401


def import_measure(_):
    from perf_callbacks import PerfConfig, measure  # noqa: F401


SETTING = "settings go into a PerfConfig: "
DICT = "config: got a dict, wanted a PerfConfig"
NOT_THE_CLASS = "write PerfCallback(), not PerfCallback"
REFUSED = [
    (lambda _: HF(gc="off"), "PerfCallback(PerfConfig(gc='off'))"),
    (lambda _: LIGHTNING(gc="off"), "PerfCallback(PerfConfig(gc='off'))"),
    (lambda _: attached(gc="observe"), f"gc: {SETTING}attach(accelerator, PerfConfig(gc='observe'))"),
    (lambda _: measured(gc="observe"), f"gc: {SETTING}measure(..., config=PerfConfig(gc='observe'))"),
    (lambda _: HF(colour="red"), "unexpected keyword argument 'colour'"),
    (lambda _: measured(colour="red"), "measure() got an unexpected keyword"),
    (lambda _: HF({"gc": "off"}), DICT),
    (lambda _: LIGHTNING({"gc": "off"}), DICT),
    (lambda _: attached({"gc": "off"}), DICT),
    (lambda _: measured(config={"gc": "off"}), DICT),
    (lambda _: HF(PerfConfig), "config: got the class PerfConfig, wanted a PerfConfig, such as"),
    (lambda _: attached(HF()), "config: got a PerfCallback, wanted a PerfConfig"),
    (lambda _: measured(model=None), "model: got a NoneType, wanted the torch.nn.Module"),
    (lambda _: measured(model=nn.Linear), "model: got the class Linear"),
    (lambda _: measured(optimizer=None), "optimizer: got a NoneType, wanted the torch.optim.Optimizer"),
    (lambda _: measured(optimizer=torch.optim.SGD), "optimizer: got the class SGD, wanted the torch.optim.Optimizer"),
    (lambda _: measured(loader=DataLoader), "loader: got the class DataLoader"),
    (lambda _: measured(loader=7), "loader: got a int, wanted an iterable of batches, or None"),
    (lambda _: measured(loader=None).loader, "measure() got no loader"),
    (lambda _: [*measured()], "iterate over perf.loader, not over perf"),
    (
        lambda _: attach(accelerate.Accelerator),
        "accelerator: got the class Accelerator, wanted an accelerate.Accelerator, as Accelerator() makes it",
    ),
    (lambda _: attach(None), "accelerator: got a NoneType"),
    (lambda path: lightning_fit(LIGHTNING, path), NOT_THE_CLASS),
    (lambda path: lightning_fit(PYTORCH_LIGHTNING, path), NOT_THE_CLASS),
    (lambda path: lightning_fit(HF, path), "take perf_callbacks.lightning.PerfCallback"),
    (lambda path: lightning_fit(HF(), path), "take perf_callbacks.lightning.PerfCallback"),
    (lambda path: trainer_of(LIGHTNING, path), "take perf_callbacks.transformers.PerfCallback"),
    (lambda path: trainer_of(LIGHTNING(), path), "take perf_callbacks.transformers.PerfCallback"),
    (import_callback, "it is in perf_callbacks.transformers (Hugging Face), perf_c"),
    (import_measure, "cannot import name 'measure' from 'perf_callbacks': it is in perf_"),
    (lambda _: perf_callbacks.attach, "has no attribute 'attach': it is in perf_callbacks."),
]


@each_row("use sentence", REFUSED)
def test_a_wrong_use_is_refused_with_a_sentence(use, sentence, tmp_path):
    with pytest.raises((ConfigError, TypeError, AttributeError, ImportError)) as refused:
        use(tmp_path)
    assert sentence in str(refused.value)


def test_a_name_of_another_module_is_no_attribute_of_the_package():
    assert not any(hasattr(perf_callbacks, name) for name in ("PerfCallback", "attach", "measure"))
    with pytest.raises(ImportError, match=r"^cannot import name 'nothing' from 'perf_callbacks' \("):
        from perf_callbacks import nothing  # noqa: F401
