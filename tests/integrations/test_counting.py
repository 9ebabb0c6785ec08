"""What every step took, whatever the shapes of its batches: counted, scaled exactly, or unknown, and never wrong."""

import random
from contextlib import suppress

import pytest
import torch
from counted import counts, excluded, gpt2, ids, known, loop, mamba, truth
from torch import nn
from trainings import models

from perf_callbacks.flops.count_schedule import FREE_COUNTS, RECOUNTS
from perf_callbacks.transformers import PerfCallback

MODELS = {"llama": models.llama, "gpt2": gpt2}


def shapes(number, *, seed=0):
    """Rows and lengths, all over the place."""
    draw = random.Random(seed)
    return [(draw.randint(1, 6), draw.randint(2, 40)) for _ in range(number)]


def unplanned(directory):
    """The steps that were counted for their shape, not because a step of this number is."""
    return [step for step in excluded(directory) if step not in RECOUNTS]


class Truths:
    """Model FLOPs by shape, each counted once."""

    def __init__(self, model, batch=ids):
        self.model, self.batch, self.seen = model, batch, {}

    def __call__(self, size):
        if size not in self.seen:
            self.seen[size] = truth(self.model, self.batch(*size))
        return self.seen[size]


@pytest.mark.parametrize("kind", [pytest.param("llama", marks=pytest.mark.slow), "gpt2"])
def test_fifty_shapes_in_a_loop(tmp_path, kind):
    sizes = shapes(50)
    true = Truths(MODELS[kind]())
    loop(tmp_path, MODELS[kind](), [ids(*size) for size in sizes])
    assert known(tmp_path) == [true(size) for size in sizes]
    assert 1 < len(unplanned(tmp_path)) <= 3
    assert all(record.source == "counted" and not record.lower_bound for record in counts(tmp_path))


class Cut:
    """Collates rows, and cuts them to some length: another one each time."""

    def __init__(self):
        self.draw, self.sizes = random.Random(1), []

    def __call__(self, rows):
        length = self.draw.randint(2, 40)
        self.sizes.append((len(rows), length))
        return {name: torch.stack([row[name][:length] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("logging_steps", [1, 5])
def test_steps_that_were_read_before_their_shape_was_counted_stay_unknown(tmp_path, logging_steps):
    cut = Cut()
    arguments = models.training_arguments(tmp_path, max_steps=30, logging_steps=logging_steps)
    data = models.Tokens(22, (40,), mask=False)
    trainer = models.trainer(arguments, PerfCallback(), model=gpt2(), train_dataset=data, data_collator=cut)
    trainer.train()
    true = Truths(gpt2())
    wrong = [
        (size, flops)
        for size, flops in zip(cut.sizes, known(tmp_path), strict=False)
        if flops not in {None, true(size)}
    ]
    assert wrong == []
    assert known(tmp_path)[5:] == [true(size) for size in cut.sizes[5:30]]


def test_a_shape_seen_only_before_the_first_count_is_counted_next_time(tmp_path):
    sizes = [(4, 6), (1, 8), (1, 8), (4, 6), (1, 8), (4, 6)]
    true = Truths(models.llama())
    loop(tmp_path, models.llama(), [ids(*size) for size in sizes])
    assert known(tmp_path) == [true(size) for size in sizes]
    assert excluded(tmp_path) == [2, 4]


@pytest.mark.parametrize("name", ["Mamba", "Mamba2"])
def test_a_model_that_pads_inside_is_counted_again_and_never_scaled(tmp_path, name):
    sizes = [(2, length) for length in (8, 16, 24, 12, 20, 8, 16, 5, 24, 12, 20, 9)]
    true = Truths(mamba(name))
    loop(tmp_path, mamba(name), [ids(*size) for size in sizes])
    steps = list(zip(sizes, known(tmp_path), strict=True))
    assert [(size, flops) for size, flops in steps if flops not in {None, true(size)}] == []
    counted = {sizes[step - 1] for step in excluded(tmp_path)}
    assert len(unplanned(tmp_path)) == FREE_COUNTS
    assert {size for size, flops in steps if flops is not None} == counted


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    small = {"vocab_size": models.VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 1}
    return T5ForConditionalGeneration(T5Config(**small, decoder_start_token_id=0, pad_token_id=0))


def translated(rows, length, other):
    """What an encoder reads, and what its decoder has to say."""
    return {"input_ids": ids(rows, length)["input_ids"], "labels": ids(rows, other)["labels"]}


def test_lengths_of_encoder_and_decoder_are_exact_after_four_counts(tmp_path):
    draw = random.Random(0)
    sizes = [(4, draw.randint(2, 40), draw.randint(2, 30)) for _ in range(30)]
    true = Truths(t5(), translated)
    loop(tmp_path, t5(), [translated(*size) for size in sizes])
    assert known(tmp_path) == [true(size) for size in sizes]
    assert len(unplanned(tmp_path)) == 4


def pictures(rows, side=8):
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(rows))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 5))


def test_images_take_two_counts_and_then_any_number_of_them_is_exact(tmp_path):
    rows = [4, 4, 4, 3, 1, 7, 4, 2]
    true = Truths(network(), pictures)
    loop(tmp_path, network(), [pictures(size) for size in rows])
    assert known(tmp_path) == [true((size,)) for size in rows]
    assert excluded(tmp_path) == [2, 4]


class Probing(nn.Linear):
    """Finds out what it got by what fails."""

    def forward(self, x):
        with suppress(RuntimeError):
            x.values()
        return super().forward(x)


class Falling(nn.Linear):
    """Has a faster way that fails."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.faster = nn.Linear(3, 3)

    def forward(self, x):
        with suppress(RuntimeError):
            return self.faster(x)
        return super().forward(x)


class Square(torch.autograd.Function):
    """Finds out in its backward what can't be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with suppress(ZeroDivisionError), torch.enable_grad():
            leaf = x.detach().requires_grad_()
            leaf.register_hook(lambda _: 1 / 0)
            torch.autograd.grad((leaf * 2).sum(), leaf)
        return 2 * x * gradient


class Nested(nn.Linear):
    def forward(self, x):
        return Square.apply(super().forward(x))


@pytest.mark.parametrize("kind", [nn.Linear, Probing, Falling, Nested])
def test_micro_batches_are_counted_whatever_a_model_survives(tmp_path, kind):
    loop(tmp_path, kind(8, 2), [torch.ones(4, 8)] * 6, each=2)
    assert known(tmp_path) == [2 * 4 * 4 * 8 * 2] * 3  # forward, and the gradients of weights
    assert len(counts(tmp_path)) == 1


def test_micro_batches_of_different_shapes_are_told_apart(tmp_path):
    sizes = shapes(30, seed=2)
    true = Truths(models.llama())
    loop(tmp_path, models.llama(), [ids(*size) for size in sizes], each=3)
    assert known(tmp_path) == [sum(true(size) for size in sizes[at : at + 3]) for at in range(0, 30, 3)]
    assert excluded(tmp_path) == [2]


def test_a_shape_beyond_the_cost_limit_is_unknown_until_a_count_is_due(tmp_path):
    """Lengths that follow no law: four of them are counted, then one in fifty steps."""

    class Jumping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(x.shape[1] % 5 + 1):
                x = self.layer(x)
            return x

    def rows(_, length):
        return torch.ones(2, length, 4)

    lengths = [3, 3, 5, 6, 8, *range(9, 264)]
    true = Truths(Jumping(), rows)
    loop(tmp_path, Jumping(), [rows(2, length) for length in lengths])
    found = list(zip(lengths, known(tmp_path), strict=True))
    assert [(length, flops) for length, flops in found if flops not in {None, true((2, length))}] == []
    counted = unplanned(tmp_path)
    assert counted[:4] == [2, 3, 4, 5]
    assert len(counted) == 6
    assert 200 < counted[4] < 204
    assert 250 < counted[5] < 254
