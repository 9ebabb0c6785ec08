"""An evaluation in inference mode, in the midst of the step that is counted: torch puts back dispatch keys at its end.

A counter that left the thread's modes in there would leave keys without a mode, and `torch.ones` would fail.
"""

import pytest
import torch
from counted import known
from torch import nn
from torch.utils.data import DataLoader
from trainings import lightning_kit
from trainings.accelerated import an_accelerator

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.loop import measure

pytestmark = pytest.mark.usefixtures("accelerate_state")

STEPS = 4


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def after_a_step(model):
    """Evaluate, and make a tensor before anything else is called."""
    model.eval()
    with torch.inference_mode():
        model(torch.ones(3, 4))
    torch.ones(2)
    model.train()


def loop(directory, *, evaluates):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory))
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * STEPS, config=config) as perf:
        for batch in perf.loader:
            model(batch).mean().backward()
            if evaluates:
                after_a_step(model)
            optimizer.step()
            optimizer.zero_grad()


def accelerate(directory, *, evaluates):
    accelerator = an_accelerator(directory)
    with attach(accelerator):
        model, loader = net(), DataLoader(torch.ones(2 * STEPS, 4), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
        for batch in loader:
            accelerator.backward(model(batch).mean())
            if evaluates:
                after_a_step(model)
            optimizer.step()
            optimizer.zero_grad()


def lightning(directory, *, evaluates):
    kinds = lightning_kit.tree()

    class Makes(kinds.Callback):
        def on_train_batch_start(self, *_):
            torch.ones(2)

    validation = {"val_check_interval": 1, "check_val_every_n_epoch": None} if evaluates else {}
    config = PerfConfig(output_dir=str(directory))
    trainer = lightning_kit.trainer(directory, Makes(), kinds.PerfCallback(config), max_steps=STEPS, **validation)
    trainer.fit(kinds.Automatic(), lightning_kit.loader(), lightning_kit.loader() if evaluates else None)


@pytest.mark.parametrize("way", [loop, accelerate, lightning], ids=lambda way: way.__name__)
def test_training_goes_on_and_the_count_is_as_without(tmp_path, way):
    way(tmp_path / "evaluates", evaluates=True)
    way(tmp_path / "without", evaluates=False)
    counted, truth = (known(tmp_path / which)[1:] for which in ("evaluates", "without"))
    assert counted == truth, "but for the first, which may be on disk before the count"
    assert all(counted)
