"""Slow code of the program within forward, backward and optimizer is named through each trainer."""

import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader
from trainings import lightning_kit
from trainings.accelerated import an_accelerator
from trainings.models import Tokens, llama, trainer, training_arguments

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.transformers import PerfCallback

STEPS, BATCH = 8, 2


def penalty():
    """Let the watchdog sample this thread, which waits meanwhile."""
    thread = threading.Thread(target=WATCHDOG.tick)
    thread.start()
    thread.join()


def through_trainer(model, config, directory, place):
    from transformers import Trainer

    class Own(Trainer):
        def compute_loss(self, *args, **known):
            found = super().compute_loss(*args, **known)
            if place == "loss":
                penalty()
            return found

    callback = PerfCallback(config)
    arguments = training_arguments(directory, per_device_train_batch_size=BATCH, max_steps=STEPS)
    rows, optimizers = Tokens(STEPS * BATCH), (optimizer_of(model, place), None)
    trainer(arguments, callback, kind=Own, model=model, train_dataset=rows, optimizers=optimizers).train()
    return callback.summary


def through_lightning(model, config, directory, place):
    kinds = lightning_kit.tree("lightning")

    class Module(kinds.pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, batch_idx):
            loss = self.model(**batch).loss
            if place == "loss":
                penalty()
            return loss

        def configure_gradient_clipping(self, *_, **__):
            if place == "clipping":
                penalty()

        def configure_optimizers(self):
            return optimizer_of(model, place)

    callback, loader = kinds.PerfCallback(config), DataLoader(Tokens(STEPS * BATCH), batch_size=BATCH)
    lightning_kit.trainer(directory, callback, max_steps=STEPS).fit(Module(), loader)
    return callback.summary


def through_accelerate(model, config, directory, place):
    accelerator = an_accelerator(directory)
    attached = attach(accelerator, config)
    loader = DataLoader(Tokens(STEPS * BATCH), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(model, place), loader)
    for batch in loader:
        loss = model(**batch).loss
        if place == "loss":
            penalty()
        accelerator.backward(loss)
        if place == "clipping":
            penalty()
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()
    return attached.summary


def optimizer_of(model, place):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: penalty() if place == "hook" else None)
    return optimizer


LIBRARY = """
class Forecaster(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch).loss
        thread = Thread(target=tick)
        thread.start()
        thread.join()
        return loss

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.1)

def fit(trainer, model, loader):
    trainer.fit(Forecaster(model), loader)
"""
"""A library that makes its module itself, and waits for the watchdog in it."""


@pytest.mark.usefixtures("accelerate_state")
def test_a_call_of_a_library_with_a_trainer_is_no_slow_code(tmp_path, monkeypatch):
    monkeypatch.setattr("perf_callbacks.kernel.process.watchdog.PERIOD_SECONDS", 3600.0)
    monkeypatch.setattr("perf_callbacks.advice.busy_lines.BusyLines._runs", lambda _: False)
    kinds = lightning_kit.tree("lightning")
    library = {"__name__": "forecasts", "pl": kinds.pl, "SGD": torch.optim.SGD}
    library |= {"Thread": threading.Thread, "tick": WATCHDOG.tick}
    exec(compile(LIBRARY, f"{sys.prefix}/lib/site-packages/forecasts.py", "exec"), library)
    callback = kinds.PerfCallback(PerfConfig(journal=False, flops="off", checklist="off"))
    loader = DataLoader(Tokens(STEPS * BATCH), batch_size=BATCH)
    library["fit"](lightning_kit.trainer(tmp_path, callback, max_steps=STEPS), llama(), loader)
    assert callback.summary.included_steps > 0
    assert [one.evidence for one in callback.summary.findings if "test_slow_code" in one.evidence] == []


STAGES = {"loss": "forward", "clipping": "optimizer", "hook": "optimizer"}


@pytest.mark.parametrize(
    ("train", "place"),
    [
        (through_trainer, "loss"),
        (through_trainer, "hook"),
        (through_lightning, "loss"),
        (through_lightning, "clipping"),
        (through_lightning, "hook"),
        (through_accelerate, "loss"),
        (through_accelerate, "clipping"),
        (through_accelerate, "hook"),
    ],
)
@pytest.mark.usefixtures("accelerate_state")
def test_slow_code_is_named_with_its_stage(train, place, tmp_path, monkeypatch):
    monkeypatch.setattr("perf_callbacks.kernel.process.watchdog.PERIOD_SECONDS", 3600.0)
    monkeypatch.setattr("perf_callbacks.advice.busy_lines.BusyLines._runs", lambda _: False)
    config = PerfConfig(journal=False, flops="off", checklist="off")
    summary = train(llama(), config, tmp_path, place)
    named = [one.evidence for one in summary.findings if "`penalty`" in one.evidence]
    assert [one.startswith(f"Python code in {STAGES[place]} took") for one in named] == [True]
