"""FLOPs of batches of many shapes, and of equal shapes that are unequal work: right or absent, and marked if unsure."""

import itertools
import random
from contextlib import suppress

import torch
from counted import counts, excluded, fit, gpt2, ids, known, loop, mamba, truth
from rows import each_row
from torch import nn
from trainings.models import llama

from perf_callbacks.flops.count_schedule import FREE_COUNTS, RECOUNTS

WIDTH, LENGTH = 8, 32
ONCE = "perf/flops_counted_once"


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


def wrong(directory, truth):
    """The steps whose FLOPs are known and wrong."""
    steps = enumerate(zip(known(directory), truth, strict=True), 1)
    return [(step, flops, true) for step, (flops, true) in steps if flops not in {None, true}]


def test_fifty_shapes_are_known_after_a_few_counts(tmp_path):
    sizes, true = shapes(50), Truths(gpt2())
    loop(tmp_path, gpt2(), [ids(*size) for size in sizes])
    assert known(tmp_path) == [true(size) for size in sizes]
    assert 1 < len(unplanned(tmp_path)) <= 3
    assert all(record.source == "counted" and not record.lower_bound for record in counts(tmp_path))


def test_steps_read_before_their_shape_was_counted_stay_unknown(tmp_path):
    sizes, true = shapes(30, seed=1), Truths(gpt2())
    loop(tmp_path, gpt2(), [ids(*size) for size in sizes], rows=[])
    truth = [true(size) for size in sizes]
    assert wrong(tmp_path, truth) == []
    assert known(tmp_path)[0] is None
    assert known(tmp_path)[5:] == truth[5:]


def test_a_shape_seen_only_before_the_first_count_is_counted_next_time(tmp_path):
    sizes = [(4, 6), (1, 8), (1, 8), (4, 6), (1, 8), (4, 6)]
    true = Truths(llama())
    loop(tmp_path, llama(), [ids(*size) for size in sizes])
    assert known(tmp_path) == [true(size) for size in sizes]
    assert excluded(tmp_path) == [2, 4]


def test_a_model_that_pads_inside_is_counted_again_and_never_scaled(tmp_path):
    sizes = [(2, length) for length in (8, 16, 24, 12, 20, 8, 16, 5, 24, 12, 20, 9)]
    true = Truths(mamba())
    loop(tmp_path, mamba(), [ids(*size) for size in sizes])
    assert wrong(tmp_path, [true(size) for size in sizes]) == []
    assert len(unplanned(tmp_path)) == FREE_COUNTS
    counted = {sizes[step - 1] for step in excluded(tmp_path)}
    assert {size for size, flops in zip(sizes, known(tmp_path), strict=True) if flops is not None} == counted


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


@each_row("kind", [nn.Linear, Probing, Falling, Nested])
def test_micro_batches_are_counted_if_a_model_survives_its_errors(tmp_path, kind):
    loop(tmp_path / kind.__name__, kind(8, 2), [torch.ones(4, 8)] * 6, each=2)
    assert known(tmp_path / kind.__name__) == [2 * 4 * 4 * 8 * 2] * 3  # forward, and the gradients of weights
    assert len(counts(tmp_path / kind.__name__)) == 1


def test_micro_batches_of_different_shapes_are_told_apart(tmp_path):
    sizes, true = shapes(30, seed=2), Truths(llama())
    loop(tmp_path, llama(), [ids(*size) for size in sizes], each=3)
    assert known(tmp_path) == [sum(true(size) for size in sizes[at : at + 3]) for at in range(0, 30, 3)]
    assert excluded(tmp_path) == [2]


class Jumping(nn.Linear):
    """Multiplies a number of times that follows no law of the length."""

    def forward(self, x):
        for _ in range(x.shape[1] % 5 + 1):
            x = super().forward(x)
        return x


def test_shapes_beyond_the_cost_limit_are_unknown_until_a_count_is_due(tmp_path):
    """Four are counted, then one in fifty steps."""
    lengths = [3, 3, 5, 6, 8, *range(9, 264)]
    true = Truths(Jumping(4, 4), lambda length: torch.ones(2, length, 4))
    perf = fit(tmp_path, Jumping(4, 4), [torch.ones(2, length, 4) for length in lengths])
    assert wrong(tmp_path, [true((length,)) for length in lengths]) == []
    counted = unplanned(tmp_path)
    assert counted[:4] == [2, 3, 4, 5]
    assert len(counted) == 6
    assert 200 < counted[4] < 204
    assert 250 < counted[5] < 254
    assert perf.summary.flops.unknown == "batches have shapes that were not counted and don't scale"


class Attention(nn.Module):
    """Attention within each part of a row. The parts are those between two numbers of `cu_seqlens`."""

    reads = True

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cu_seqlens):
        x = self.inner(x[0])
        ends = cu_seqlens.tolist() if self.reads else [0, LENGTH]
        return torch.cat([part @ part.T @ part for part in (x[a:b] for a, b in itertools.pairwise(ends))])


def packed_row(middle):
    return {"x": torch.ones(1, LENGTH, WIDTH), "cu_seqlens": torch.tensor([0, middle, LENGTH])}


def attended(*parts):
    """FLOPs of a step: two products with the weights, and three times the two products in each part."""
    return 2 * (2 * LENGTH * WIDTH**2) + 3 * sum(2 * 2 * part**2 * WIDTH for part in parts)


def test_parts_of_rows_that_differ_in_length_are_other_work(tmp_path):
    middles = {"few": random.Random(0).choices([16, 8, 2], k=60), "many": [1 + step % 15 for step in range(60)]}
    middles["few"][RECOUNTS[0] - 1] = middles["few"][1]  # the recount is of an equal batch, and notices nothing
    for name, chosen in middles.items():
        perf = fit(tmp_path / name, Attention(), [packed_row(middle) for middle in chosen], rows=[])
        assert wrong(tmp_path / name, [attended(middle, LENGTH - middle) for middle in chosen]) == []
        if name == "few":
            assert known(tmp_path / name).count(None) < 60 / 4
            assert perf.summary.flops.checked_step >= RECOUNTS[0]


def test_lengths_that_a_model_does_not_read_leave_flops_known(tmp_path):
    model = Attention()
    model.reads = False
    perf = fit(tmp_path, model, [packed_row(1 + step % 29) for step in range(60)], rows=[])
    assert wrong(tmp_path, [attended(LENGTH)] * 60) == []
    assert known(tmp_path)[4:] == [attended(LENGTH)] * 56
    assert perf.summary.flops.unknown is None


class Remembering(nn.Module):
    """Attends to all rows that it ever got."""

    past = ()

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.inner(x)
        self.past = (*self.past, x.detach())
        return x @ torch.cat(self.past).T


def test_keys_that_grow_are_marked_until_a_recount_notices(tmp_path):
    rows = []
    perf = fit(tmp_path, Remembering(), [torch.ones(4, WIDTH)] * 20, rows=rows, peak_tflops="1")
    early = [row for row in rows[: RECOUNTS[0] - 1] if "perf/tflops" in row]
    assert early
    assert all(row[ONCE] == 1 for row in early)
    assert not any("perf/tflops" in row for row in rows[RECOUNTS[0] :])
    assert perf.summary.flops.unknown.startswith("the work of equal batches varies")


def test_rows_of_flops_that_a_second_count_confirmed_have_no_mark(tmp_path):
    rows = []
    fit(tmp_path, nn.Linear(WIDTH, WIDTH), [torch.ones(4, WIDTH)] * 14, rows=rows, peak_tflops="1")
    assert excluded(tmp_path) == [2, RECOUNTS[0]]
    assert [step for step, row in enumerate(rows, 1) if ONCE in row] == [*range(3, RECOUNTS[0])]
    assert "perf/mfu" in rows[-1]
