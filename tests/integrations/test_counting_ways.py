"""Steps that call the model in other ways than the counted one: FLOPs are right, or absent for a reason."""

import pytest
import torch
from counted import counts, excluded, ids, known, loss_of, truth
from torch import nn
from trainings import lightning_kit, models
from transformers import Trainer

from perf_callbacks import PerfConfig
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

ROWS, WIDTH = 4, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH


EVERY = 3
"""One step in so many has no backward."""


def skipping_loop(directory, steps, *, forward):
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(directory), gc="off")
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(ROWS, WIDTH)] * steps, config=config) as perf:
        for number, batch in enumerate(perf.loader, start=1):
            skips = number % EVERY == 0
            loss = model(batch).sum() if forward or not skips else None
            if not skips:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return perf.summary, PRODUCT, 2 * PRODUCT


def skipping_lightning(directory, steps, *, forward):
    kinds = lightning_kit.tree()

    class Skipping(kinds.Automatic):
        def training_step(self, batch, batch_idx):
            skips = (self.global_step + 1) % EVERY == 0
            loss = self.net(batch).square().mean() if forward or not skips else None
            return None if skips else loss

    callback = kinds.PerfCallback(PerfConfig(gc="off"))
    lightning_kit.trainer(directory, callback, max_steps=steps).fit(Skipping(), lightning_kit.loader())
    once = 2 * 4 * lightning_kit.WIDTH**2
    return callback.summary, once, 2 * once


def skipping_transformers(directory, steps, *, forward):
    class Skipping(Trainer):
        def training_step(self, model, inputs, *rest):
            if (self.state.global_step + 1) % EVERY:
                return super().training_step(model, inputs, *rest)
            return self.compute_loss(model, inputs).detach() if forward else torch.zeros(())

    callback = PerfCallback(PerfConfig(gc="off"))
    arguments = models.training_arguments(directory, max_steps=steps, logging_steps=steps)
    models.trainer(arguments, callback, kind=Skipping, train_dataset=models.Tokens(4 * steps, mask=False)).train()
    model = models.llama()
    with FlopCounter() as counter:
        loss_of(model, ids(4, 16))
    return callback.summary, counter.work().model_flops, truth(model, ids(4, 16))


@pytest.mark.filterwarnings("ignore:.*returned `None`")
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("fit", [skipping_loop, skipping_lightning, skipping_transformers])
def test_a_step_without_a_backward_has_the_work_of_its_forward(tmp_path, fit, forward):
    steps = 60
    summary, once, whole = fit(tmp_path, steps, forward=forward)
    expected = [whole, whole, once * forward] * (steps // EVERY)
    found = known(tmp_path)
    assert [(flops, true) for flops, true in zip(found, expected, strict=True) if flops not in {None, true}] == []
    assert sum(flops is not None for flops in found) >= 0.6 * steps
    assert found[1] == whole
    assert summary.flops.unknown is None or "known for" in summary.flops.unknown


class Direct(Trainer):
    """Announces its forward and not its backward."""

    def training_step(self, model, inputs, *_):
        loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()


def test_a_backward_that_no_trainer_announces_is_counted(tmp_path):
    arguments = models.training_arguments(tmp_path, max_steps=6)
    models.trainer(arguments, PerfCallback(), kind=Direct, train_dataset=models.Tokens(32, mask=False)).train()
    assert known(tmp_path)[2:] == [truth(models.llama(), ids(4, 16))] * 4


def train(directory, steps, step, **options):
    """A plain loop without a loader of its own; `step` does one step or several."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(directory), gc="off")
    with measure(model=model, optimizer=optimizer, config=config, **options) as perf:
        for batch in perf.loader if options else range(steps):
            step(model, optimizer, batch)
    return perf.summary


def once(model, optimizer, batch):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


NO_BATCH = "these steps trained on no new batch; batches that a loop keeps, as with itertools.cycle, are not seen"


def test_an_echoed_batch_has_its_reason(tmp_path):
    def echo(model, optimizer, batch):
        once(model, optimizer, batch)
        once(model, optimizer, batch)

    summary = train(tmp_path, 20, echo, loader=[torch.ones(ROWS, WIDTH)] * 20)
    found = known(tmp_path)
    assert {*found} == {None, 2 * PRODUCT}
    assert found[3::2] == [None] * 19
    assert summary.flops.unknown == f"known for {summary.flops.steps} of {summary.included_steps} steps: {NO_BATCH}"


def test_truncated_backpropagation_through_time_has_its_reason(tmp_path):
    def chunked(model, optimizer, batch):
        for chunk in batch.split(2):
            once(model, optimizer, chunk)

    summary = train(tmp_path, 8, chunked, loader=[torch.ones(ROWS, WIDTH)] * 8)
    assert {*known(tmp_path)} <= {None, PRODUCT}
    assert summary.flops.unknown.endswith(NO_BATCH)


def test_calls_of_submodules_have_their_reason(tmp_path):
    summary = train(tmp_path, 8, lambda model, optimizer, _: once(model[0], optimizer, torch.ones(ROWS, WIDTH)))
    assert {*known(tmp_path)} == {None}
    assert summary.flops.unknown == "the counted steps trained on no new batch"


def test_a_short_fit_without_products_keeps_its_times(tmp_path):
    class Scaled(nn.Linear):
        def forward(self, x):
            return x * self.bias

    model = Scaled(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(tmp_path), gc="off")
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(ROWS, WIDTH)] * 12, config=config) as perf:
        for batch in perf.loader:
            once(model, optimizer, batch)
    assert excluded(tmp_path) == [2, 3, 11]
    assert perf.summary.included_steps == 8
    assert counts(tmp_path) == []


class Iterating(nn.Linear):
    """Multiplies as often as its batch says."""

    def forward(self, batch):
        x = batch["x"]
        for _ in range(batch["n"]):
            x = super().forward(x)
        return x.sum()


@pytest.mark.parametrize("varies", [False, True], ids=["constant", "varies"])
def test_a_plain_number_that_decides_the_work_is_found_by_a_recount(tmp_path, varies):
    model = Iterating(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = [{"x": torch.ones(ROWS, WIDTH), "n": 2 if varies and step % 2 else 5} for step in range(40)]
    config = PerfConfig(output_dir=str(tmp_path), gc="off")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            once(model, optimizer, batch)
    if varies:
        assert perf.summary.flops.model_flops is None
        assert perf.summary.flops.unknown.startswith("the work of equal batches varies")
    else:
        assert known(tmp_path) == [(3 * 5 - 1) * PRODUCT] * 40
        assert perf.summary.flops.unknown is None
