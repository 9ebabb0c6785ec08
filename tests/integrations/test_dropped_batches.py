"""Batches belong to the step that trains on them: those that a loop drops, fetches early or puts together."""

import lightning
import numpy as np
import pytest
import torch
from sampling import crossed
from torch import nn
from torch.utils.data import DataLoader
from trainings import lightning_kit
from trainings.accelerated import an_accelerator
from trainings.runs import steps

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.engine.engine import MOST_BATCHES
from perf_callbacks.lightning import PerfCallback
from perf_callbacks.loop import measure

pytestmark = pytest.mark.usefixtures("accelerate_state")

ALL_SIZES = [torch.ones(4 + place % 3, 16) for place in range(60)]
ONE_SIZE = [torch.ones(4, 16) for _ in range(60)]


class Loop:
    """A model, its optimizer, and the samples of each step."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.trained = []
        self.backward = torch.Tensor.backward

    def loss(self, x):
        return self.model(x).square().mean()

    def step(self, samples):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.trained.append(samples)

    def train(self, x, *, samples=None):
        self.backward(self.loss(x))
        self.step(len(x) if samples is None else samples)


def drops_before_the_forward(loop, batches):
    for place, x in enumerate(batches):
        if place % 5 == 0:
            loop.train(x)


def drops_and_copies(loop, batches):
    for place, x in enumerate(batches):
        if place % 5 == 0:
            loop.train(x + 1)


def drops_the_first(loop, batches):
    for place, x in enumerate(batches):
        if place > 6:
            loop.train(x)


def drops_and_calls_the_model_twice(loop, batches):
    for place, x in enumerate(batches):
        if place % 5 != 2:
            loop.backward(loop.loss(x) + loop.loss(x))
            loop.step(len(x))


def drops_after_the_forward(loop, batches):
    for place, x in enumerate(batches):
        loss = loop.loss(x)
        if place % 5 != 4:
            loop.backward(loss)
            loop.step(len(x))


def steps_without_a_backward(loop, batches):
    for place, x in enumerate(batches):
        loss = loop.loss(x)
        trains = place % 5 != 4
        if trains:
            loop.backward(loss)
        loop.step(len(x) if trains else 0)


def prefetches(loop, batches, change=lambda x: x):
    iterator = iter(batches)
    x = next(iterator)
    while x is not None:
        following = next(iterator, None)
        loop.train(change(x))
        x = following


def prefetches_and_copies(loop, batches):
    prefetches(loop, batches, lambda x: x + 1)


def prefetches_and_calls_the_model_twice(loop, batches):
    iterator = iter(batches)
    x = next(iterator)
    while x is not None:
        following = next(iterator, None)
        loop.backward(loop.loss(x) + loop.loss(x))
        loop.step(len(x))
        x = following


def prefetches_and_calls_the_model_with_two_copies(loop, batches):
    iterator = iter(batches)
    x = next(iterator)
    while x is not None:
        following = next(iterator, None)
        loop.backward(loop.loss(x + 1) + loop.loss(x + 2))
        loop.step(len(x))
        x = following


def prefetches_before_the_backward(loop, batches):
    iterator = iter(batches)
    x = next(iterator)
    while x is not None:
        loss, rows = loop.loss(x), len(x)
        x = next(iterator, None)
        loop.backward(loss)
        loop.step(rows)


def prefetches_two(loop, batches):
    iterator = iter(batches)
    waiting = [next(iterator), next(iterator)]
    while waiting:
        following = next(iterator, None)
        waiting += [] if following is None else [following]
        loop.train(waiting.pop(0))


def prefetches_and_drops(loop, batches):
    iterator = iter(batches)
    x, place = next(iterator), 0
    while x is not None:
        following = next(iterator, None)
        if place % 5:
            loop.train(x)
        x, place = following, place + 1


def fetches_four_at_once(loop, batches):
    iterator = iter(batches)
    for _ in range(15):
        four = [next(iterator) for _ in range(4)]
        for x in four:
            loop.backward(loop.loss(x))
        loop.step(sum(map(len, four)))


def adds_two_losses(loop, batches):
    iterator = iter(batches)
    for x in iterator:
        first, y = loop.loss(x), next(iterator)
        loop.backward(first + loop.loss(y))
        loop.step(len(x) + len(y))


def adds_two_losses_later(loop, batches):
    iterator = iter(batches)
    for place, x in enumerate(iterator):
        if place < 10:
            loop.train(x)
            continue
        first, y = loop.loss(x), next(iterator)
        loop.backward(first + loop.loss(y))
        loop.step(len(x) + len(y))


def adds_two_losses_and_drops(loop, batches):
    iterator = iter(batches)
    for place, x in enumerate(iterator):
        loss = loop.loss(x)
        if place % 4 != 3:
            y = next(iterator)
            loop.backward(loss + loop.loss(y))
            loop.step(len(x) + len(y))


def goes_through_two_losses(loop, batches):
    iterator = iter(batches)
    for x in iterator:
        y = next(iterator)
        losses = [loop.loss(x), loop.loss(y)]
        for loss in losses:
            loop.backward(loss)
        loop.step(len(x) + len(y))


def looks_without_gradients(loop, batches):
    for place, x in enumerate(batches):
        if place % 5 < 3:
            with torch.no_grad():
                loop.loss(x)
        else:
            loop.train(x)


def puts_two_batches_together(loop, batches):
    iterator = iter(batches)
    for x in iterator:
        loop.train(torch.cat([x, next(iterator)]))


def calls_parts_of_the_model(loop, batches):
    for x in batches:
        loop.backward(loop.model[2](loop.model[:2](x)).square().mean())
        loop.step(len(x))


def prefetches_into_one_buffer(loop, batches):
    buffer, fetched = torch.empty(4, 16), iter(batches)
    following = next(fetched)
    while following is not None:
        x, following = following, next(fetched, None)
        loop.train(buffer.copy_(x) if len(x) == len(buffer) else x)


LOOPS = [
    prefetches_into_one_buffer,
    drops_before_the_forward,
    drops_and_copies,
    drops_the_first,
    drops_and_calls_the_model_twice,
    drops_after_the_forward,
    steps_without_a_backward,
    prefetches,
    prefetches_and_copies,
    prefetches_and_calls_the_model_twice,
    prefetches_and_calls_the_model_with_two_copies,
    prefetches_before_the_backward,
    prefetches_two,
    prefetches_and_drops,
    fetches_four_at_once,
    adds_two_losses,
    adds_two_losses_later,
    adds_two_losses_and_drops,
    goes_through_two_losses,
    looks_without_gradients,
    puts_two_batches_together,
    calls_parts_of_the_model,
]


def plainly(directory, train, batches):
    loop = Loop()
    config = PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1")
    with measure(model=loop.model, optimizer=loop.optimizer, loader=batches, config=config) as perf:
        train(loop, perf.loader)
    return perf.summary, loop.trained, steps(directory)


def with_accelerate(directory, train, batches):
    loop, accelerator = Loop(), an_accelerator(directory)
    loop.backward = accelerator.backward
    with attach(accelerator, PerfConfig(gc="off", peak_tflops="1")) as perf:
        loader = DataLoader(batches, batch_size=None)
        loop.model, loop.optimizer, loader = accelerator.prepare(loop.model, loop.optimizer, loader)
        train(loop, loader)
    return perf.summary, loop.trained, steps(directory)


DOORS = pytest.mark.parametrize("measured", [plainly, with_accelerate], ids=["plain", "accelerate"])


WAYS = {
    "plain, of all sizes": (plainly, ALL_SIZES),
    "accelerate, of one size": (with_accelerate, ONE_SIZE),
    "plain, of one size": (plainly, ONE_SIZE),
    "accelerate, of all sizes": (with_accelerate, ALL_SIZES),
}


@pytest.mark.parametrize(("train", "way"), crossed({train.__name__: train for train in LOOPS}, WAYS))
def test_the_samples_of_a_step_are_those_that_it_trains_on(tmp_path, train, way):
    measured, batches = way
    summary, trained, done = measured(tmp_path, train, batches)
    assert [step["samples"] for step in done] == trained
    assert summary.samples == sum(trained)


def test_numbers_of_numpy_beside_the_tensors_of_a_loop_that_prefetches(tmp_path):
    def train(loop, batches):
        fetched = iter(batches)
        following = next(fetched)
        while following is not None:
            batch, following = following, next(fetched, None)
            loop.train(batch["x"])

    summary, trained, _ = plainly(tmp_path, train, [{"x": x, "weight": np.float32(1)} for x in ONE_SIZE])
    assert summary.samples == sum(trained)


def test_samples_are_unknown_if_the_loss_drops_some_of_too_many_batches(tmp_path):
    def train(loop, batches):
        losses = [loop.loss(x) for x in batches]
        loop.backward(sum(losses[::2]))
        loop.step(0)

    summary, _, _ = plainly(tmp_path, train, [torch.ones(4, 16)] * (2 * MOST_BATCHES))
    assert (summary.steps, summary.samples) == (1, None)


def trains_twice_on_each(loop, batches):
    for x in batches:
        loop.train(x)
        loop.train(x, samples=-1)


@DOORS
def test_samples_are_unknown_in_a_step_that_trains_on_an_earlier_batch(tmp_path, measured):
    summary, trained, done = measured(tmp_path, trains_twice_on_each, ALL_SIZES)
    assert [step["samples"] for step in done] == [None if one < 0 else one for one in trained]
    assert summary.samples is None


def test_a_batch_with_accelerate_that_no_call_tells_from_others_is_unknown(tmp_path):
    def train(loop, batches):
        loop.model = nn.Sequential(*loop.model)  # another one, which is not watched
        prefetches(loop, batches)

    _, _, done = with_accelerate(tmp_path, train, ALL_SIZES)
    assert {step["samples"] for step in done[:-1]} == {None}


@DOORS
@pytest.mark.parametrize("train", [prefetches, prefetches_and_copies, drops_before_the_forward, drops_and_copies])
def test_the_flops_of_a_step_are_those_of_the_batch_that_it_trains_on(tmp_path, measured, train):
    summary, trained, done = measured(tmp_path, train, ALL_SIZES)
    assert [step["model_flops"] for step in done[2:]] == [
        (6 * 16 * 8 - 2 * 16 * 8 + 6 * 8) * rows for rows in trained[2:]
    ]
    assert summary.flops.unknown is None


class Skipping(lightning.LightningModule):
    """Skips long batches, as the trainer allows it: `training_step` returns None."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def training_step(self, batch, batch_idx):
        return None if batch_idx % 3 == 2 else self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Iterating(Skipping):
    """The same, from a `dataloader_iter`."""

    def training_step(self, dataloader_iter):
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")
@pytest.mark.parametrize("module", [Skipping, Iterating])
def test_a_batch_that_lightning_skips_has_no_samples(tmp_path, module):
    ours = PerfCallback(PerfConfig(output_dir=str(tmp_path), gc="off", peak_tflops="1"))
    trainer = lightning_kit.trainer(tmp_path, ours, max_steps=60)
    trainer.fit(module(), torch.utils.data.DataLoader(ALL_SIZES, batch_size=None))
    assert ours.summary.samples == sum(len(x) for place, x in enumerate(ALL_SIZES) if place % 3 != 2)
