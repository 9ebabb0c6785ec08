"""Ways to train: FLOPs are right, or absent for a reason. Truth is counted by a counter of these tests."""

from math import prod

import pytest
import torch
from counted import counts, excluded, fit, ids, known, truth
from rows import each_row
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from trainings import lightning_kit, models
from transformers import Trainer

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

ROWS, WIDTH = 4, 8
PRODUCT = 2 * ROWS * WIDTH * WIDTH
BATCH = torch.ones(ROWS, WIDTH)


class Products(TorchDispatchMode):
    """Counts plain products of matrices, and nothing else."""

    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).split(".")[1] in {"mm", "bmm", "addmm", "baddbmm"}:
            a, b = args[-2:]
            self.flops += 2 * prod(a.shape) * b.shape[-1]
        return func(*args, **kwargs or {})


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def penalty(model, batch):
    """The gradient with respect to the inputs, as a part of the loss."""
    inputs = batch.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return gradient.square().sum()


def sharpness_aware(number, model, batch):
    """SAM: two forwards and backwards in a step, the second one elsewhere."""
    model(batch).square().mean().backward()
    with torch.no_grad():
        moved = [0.01 * weight.grad for weight in model.parameters()]
        for weight, by in zip(model.parameters(), moved, strict=True):
            weight.add_(by)
    model.zero_grad()
    model(batch).square().mean().backward()
    with torch.no_grad():
        for weight, by in zip(model.parameters(), moved, strict=True):
            weight.sub_(by)


def adversarial(number, model, batch):
    """PGD in every seventh step: three backwards that reach the inputs only."""
    for _ in range(3 if number % 7 == 1 else 0):
        inputs = batch.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs)
        batch = (inputs + 0.1 * gradient.sign()).detach()
    model(batch).square().mean().backward()


def with_penalty(every):
    """WGAN-GP."""

    def step(number, model, batch):
        loss = model(batch).sum()
        (loss + penalty(model, batch) if (number - 1) % every == 0 else loss).backward()

    return step


WAYS = {"sharpness aware": sharpness_aware, "adversarial": adversarial}
WAYS |= {f"a penalty every {every} steps": with_penalty(every) for every in (1, 2, 6, 7, 16)}


@each_row("name", WAYS)
def test_ways_to_train_are_right_or_absent(tmp_path, name):
    batches, model, true = [torch.ones(2 if number == 39 else 4, WIDTH) for number in range(40)], net(), []
    for number, batch in enumerate(batches, 1):
        with Products() as products:
            WAYS[name](number, model, batch)
        true.append(products.flops)
    model = net()
    fit(tmp_path / name, model, batches, lambda number, batch: WAYS[name](number, model, batch))
    found = known(tmp_path / name)
    assert [(step, a, b) for step, (a, b) in enumerate(zip(found, true, strict=True), 1) if a not in {b, None}] == []
    assert found.count(None) <= 8


def test_a_penalty_in_some_steps_of_a_trainer_is_counted_apart(tmp_path):
    """A trainer announces its passes. Neither two nor any of the steps that are counted again has a penalty."""
    kinds = lightning_kit.tree()

    class Penalized(kinds.Automatic):
        def training_step(self, batch, batch_idx):
            loss = self.net(batch).sum()
            return loss + penalty(self.net, batch) if batch_idx % 7 == 0 else loss

    trainer = lightning_kit.trainer(tmp_path, kinds.PerfCallback(), max_steps=24)
    trainer.fit(Penalized(), lightning_kit.loader(rows=96))
    plain = 2 * (2 * 4 * lightning_kit.WIDTH**2)
    more = {step: flops for step, flops in enumerate(known(tmp_path), start=1) if flops not in {plain, None}}
    assert {*more} <= {1, 8, 15, 22}
    assert more
    assert {known(tmp_path)[step - 1] for step in (1, 8, 15, 22)} <= {None, *more.values()}


def after_the_loader(loader, model, optimizer):
    """One loss of all batches, whose backward comes after the loader's end."""
    for _ in range(12):
        loss = sum(model(batch).sum() for batch in loader)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def after_a_break(loader, model, optimizer):
    """A batch at a time: the backward comes after the loop was left."""
    for _ in range(12):
        for batch in loader:
            loss = model(batch).sum()
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("train", [after_the_loader, after_a_break])
def test_a_backward_after_the_loader_was_left_is_counted_or_nothing_is(tmp_path, train):
    batches, model = [torch.ones(4, WIDTH)] * 3, net()
    with Products() as products:
        train(batches, model, torch.optim.SGD(model.parameters(), lr=0.01))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(tmp_path), gc="off")
    with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
        train(perf.loader, model, optimizer)
    told = {flops for flops in known(tmp_path) if flops is not None}
    assert told <= {products.flops // 12}
    assert told or train is after_a_break


EVERY = 3
"""One step in so many has no backward."""


def skipping_loop(directory, steps, *, forward):
    model = nn.Linear(WIDTH, WIDTH)

    def step(number, batch):
        skips = number % EVERY == 0
        loss = model(batch).sum() if forward or not skips else None
        if not skips:
            loss.backward()

    return fit(directory, model, [BATCH] * steps, step).summary, PRODUCT


def skipping_trainer(directory, steps, *, forward):
    kinds = lightning_kit.tree()

    class Skipping(kinds.Automatic):
        def training_step(self, batch, batch_idx):
            skips = (self.global_step + 1) % EVERY == 0
            loss = self.net(batch).square().mean() if forward or not skips else None
            return None if skips else loss

    callback = kinds.PerfCallback(PerfConfig(gc="off"))
    lightning_kit.trainer(directory, callback, max_steps=steps).fit(Skipping(), lightning_kit.loader())
    return callback.summary, 2 * 4 * lightning_kit.WIDTH**2


@pytest.mark.filterwarnings("ignore:.*returned `None`")
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("skipping", [skipping_loop, skipping_trainer])
def test_a_step_without_a_backward_has_the_work_of_its_forward(tmp_path, skipping, forward):
    summary, once = skipping(tmp_path, 60, forward=forward)
    expected = [2 * once, 2 * once, once * forward] * (60 // EVERY)
    found = known(tmp_path)
    assert [(flops, true) for flops, true in zip(found, expected, strict=True) if flops not in {None, true}] == []
    assert sum(flops is not None for flops in found) >= 0.6 * 60
    assert found[1] == 2 * once
    assert summary.flops.unknown is None or "known for" in summary.flops.unknown


class Direct(Trainer):
    """Announces its forward and not its backward."""

    def training_step(self, model, inputs, *_):
        loss = self.compute_loss(model, inputs)
        loss.backward()
        return loss.detach()


class Own(Trainer):
    """Trains in a way of its own, which announces no forward."""

    def training_step(self, model, inputs, *_):
        loss = model(**inputs).loss
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.parametrize("kind", [Direct, Own])
def test_passes_that_a_trainer_does_not_announce_are_counted_later(tmp_path, kind):
    arguments = models.training_arguments(tmp_path, max_steps=6)
    models.trainer(arguments, PerfCallback(), kind=kind, train_dataset=models.Tokens(32, mask=False)).train()
    # angles of positions are made without gradients: they belong to an announced forward alone
    assert known(tmp_path)[2:] == pytest.approx([truth(models.llama(), ids(4, 16))] * 4, rel=1e-3 * (kind is Own))
    assert [record.step for record in counts(tmp_path)] == [3]


NO_BATCH = "these steps trained on no new batch; batches that a loop keeps, as with itertools.cycle, are not seen"


def once(model, optimizer, batch):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_an_echoed_batch_has_its_reason(tmp_path):
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(tmp_path), gc="off")
    with measure(model=model, optimizer=optimizer, loader=[BATCH] * 20, config=config) as perf:
        for batch in perf.loader:
            once(model, optimizer, batch)
            once(model, optimizer, batch)
    found, flops = known(tmp_path), perf.summary.flops
    assert {*found} == {None, 2 * PRODUCT}
    assert found[3::2] == [None] * 19
    assert flops.unknown == f"known for {flops.steps} of {perf.summary.included_steps} steps: {NO_BATCH}"


def test_calls_of_submodules_without_a_loader_have_their_reason(tmp_path):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with measure(model=model, optimizer=optimizer, config=PerfConfig(output_dir=str(tmp_path), gc="off")) as perf:
        for _ in range(8):
            once(model[0], optimizer, BATCH)
    assert {*known(tmp_path)} == {None}
    assert perf.summary.flops.unknown == "the counted steps trained on no new batch"


class Scaled(nn.Linear):
    def forward(self, x):
        return x * self.bias


def test_a_short_fit_without_products_keeps_its_times(tmp_path):
    perf = fit(tmp_path, Scaled(WIDTH, WIDTH), [BATCH] * 12)
    assert excluded(tmp_path) == [2, 3, 11]
    assert perf.summary.included_steps == 8
    assert counts(tmp_path) == []
    assert perf.summary.flops.unknown == "the counted steps had no matrix products in forward and backward"


class Hidden:
    """Nobody finds a tensor in it."""

    def __init__(self, x):
        self.open = lambda: x


class Unpacking(nn.Linear):
    def forward(self, batch):
        return super().forward(batch.open())


def test_a_batch_that_can_not_be_read_has_no_flops(tmp_path):
    batches = [Hidden(torch.ones(rows, WIDTH)) for rows in (4, 4, 8, 16, 2, 4)]
    flops = fit(tmp_path, Unpacking(WIDTH, WIDTH), batches).summary.flops
    assert known(tmp_path) == [None] * 6
    assert flops.unknown.endswith("the batch is a Hidden whose shapes can't be read")
    assert flops.model_flops is None
