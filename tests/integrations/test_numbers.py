"""Steps that take other work than their batches and their calls of the model show: no number is wrong without a mark.

Truth is counted step by step, by a counter of these tests, in another run of the same loop.
"""

from math import prod

import pytest
import torch
from counted import known
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from trainings import lightning_kit

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

WIDTH = 8


class Products(TorchDispatchMode):
    """Counts plain products of matrices, and nothing else."""

    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        called = str(func).split(".")[1]
        if called in {"mm", "bmm", "addmm", "baddbmm"}:
            a, b = args[-2:]
            self.flops += 2 * prod(a.shape) * b.shape[-1]
        return out


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def penalty(model, batch):
    """The gradient with respect to the inputs, as a part of the loss."""
    inputs = batch.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return gradient.square().sum()


def train(batches, steps, optimizer):
    """Train with one step after the other."""
    for number, batch in enumerate(batches):
        steps(number, batch)
        optimizer.step()
        optimizer.zero_grad()


def told_and_true(directory, make, batches):
    """FLOPs of each step, as the journal has them and as they are."""
    model, step = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    true = []
    for number, batch in enumerate(batches):
        with Products() as products:
            step(number, batch)
        true.append(products.flops)
    model, step = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(directory), gc="off")
    with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
        train(perf.loader, step, optimizer)
    return known(directory), true


def each_right(told, true, *, unknown):
    wrong = [(n, a, b) for n, (a, b) in enumerate(zip(told, true, strict=True), start=1) if a not in {b, None}]
    assert not wrong
    assert told.count(None) <= unknown


@pytest.mark.parametrize("every", [2, 6, 7, 16])
def test_a_penalty_in_some_steps(tmp_path, every):
    def make():
        model = net()

        def step(number, batch):
            loss = model(batch).sum()
            if number % every == 0:
                loss = loss + penalty(model, batch)
            loss.backward()

        return model, step

    each_right(*told_and_true(tmp_path, make, [torch.ones(4, WIDTH)] * 40), unknown=8)


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
    for _ in range(3 if number % 7 == 0 else 0):
        inputs = batch.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs)
        batch = (inputs + 0.1 * gradient.sign()).detach()
    model(batch).square().mean().backward()


def with_penalty(number, model, batch):
    """WGAN-GP, in every step."""
    (model(batch).sum() + penalty(model, batch)).backward()


WAYS = (sharpness_aware, adversarial, with_penalty)


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_ways_to_train(tmp_path, way):
    def make():
        model = net()
        return model, lambda number, batch: way(number, model, batch)

    ragged = [torch.ones(2 if number == 39 else 4, WIDTH) for number in range(40)]
    each_right(*told_and_true(tmp_path, make, ragged), unknown=8)


def test_a_penalty_in_some_steps_of_a_trainer(tmp_path):
    """Neither two nor any of the steps that are counted again has one."""
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
    assert plain not in more.values()


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
    batches = [torch.ones(4, WIDTH)] * 3
    model = net()
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
