"""A function's own backward that multiplies again without gradients: recomputation, told by the operands alone."""

import pytest
import torch
from flops.products import OUT, PRODUCT, ROWS, WIDE, counted, squared
from flops.test_phases import ByHand
from rows import each_row
from torch.utils.checkpoint import checkpoint

from perf_callbacks.flops.counting import phases


def slopes(logits):
    """Gradients of the sum of logarithms of sums of exponentials."""
    return logits.softmax(-1)


class Head(torch.autograd.Function):
    """Sums up logarithms of sums of exponentials of a head's logits, in chunks of one buffer, and keeps no logits."""

    CHUNK = OUT // 2

    @classmethod
    def chunks(cls, x, weight):
        tile = x.new_empty(len(x), cls.CHUNK)
        for start in range(0, len(weight), cls.CHUNK):
            rows = slice(start, start + cls.CHUNK)
            yield rows, torch.mm(x, weight[rows].t(), out=tile)

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return sum(tile.logsumexp(-1).sum() for _, tile in Head.chunks(x, weight))

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        to_x, to_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for rows, tile in Head.chunks(x, weight):
            tile.copy_(slopes(tile) * gradient)
            to_x.addmm_(tile, weight[rows])
            to_weight[rows] += tile.t() @ x
        return to_x, to_weight


class Unseen(Head):
    """The same with a kernel that turns the logits into their gradient in place, past torch's dispatcher."""

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        to_x, to_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for rows, tile in Head.chunks(x, weight):
            tile.numpy()[:] *= gradient.numpy()
            to_x.addmm_(tile, weight[rows])
            to_weight[rows] += tile.t() @ x
        return to_x, to_weight


class InForward(torch.autograd.Function):
    """Computes the gradient of the logits in its forward, and multiplies with what comes in at the very end."""

    @staticmethod
    def forward(ctx, x, weight):
        logits = x @ weight.t()
        ctx.save_for_backward(x, weight, slopes(logits))
        return logits.logsumexp(-1).sum()

    @staticmethod
    def backward(ctx, gradient):
        x, weight, to_logits = ctx.saved_tensors
        return (to_logits @ weight) * gradient, (to_logits.t() @ x) * gradient


class Perceptron(torch.autograd.Function):
    """Two layers, of which the backward computes both again, the second as somebody does who needs its result."""

    @staticmethod
    def forward(ctx, x, first, second):
        ctx.save_for_backward(x, first, second)
        return ((x @ first.t()).relu() @ second.t()).square()

    @staticmethod
    def backward(ctx, gradient):
        x, first, second = ctx.saved_tensors
        before = x @ first.t()
        between = before.relu()
        gradient = gradient * 2 * (between @ second.t())
        to_between = (gradient @ second) * (before > 0)
        return to_between @ first, to_between.t() @ x, gradient.t() @ between


class Attention(torch.autograd.Function):
    """Attention that computes its scores again. One of its gradients has the sizes of a product of the forward."""

    @staticmethod
    def forward(ctx, query, key, value):
        ctx.save_for_backward(query, key, value)
        return (query @ key.mT).softmax(-1) @ value

    @staticmethod
    def backward(ctx, gradient):
        query, key, value = ctx.saved_tensors
        weights = (query @ key.mT).softmax(-1)
        to_weights = gradient @ value.mT
        to_scores = weights * (to_weights - (weights * to_weights).sum(-1, keepdim=True))
        return to_scores @ key, to_scores.mT @ query, weights.mT @ gradient


class Handed(Attention):
    """The same; the gradient is first copied by a kernel that torch doesn't see."""

    @staticmethod
    def backward(ctx, gradient):
        copied = torch.empty(gradient.shape)
        copied.numpy()[:] = gradient.numpy()
        return Attention.backward(ctx, copied)


def random(*sizes):
    return torch.randn(*sizes, requires_grad=True)


SQUARE = 2 * 3 * ROWS * ROWS * WIDE

# the function, its operands, its forward, how much of that it computes again, and how many gradients are products
FUNCTIONS = {
    "a head in chunks": (Head, [(ROWS, WIDE), (OUT, WIDE)], PRODUCT, PRODUCT, 2),
    "a head of one square": (Head, [(OUT, OUT // 2), (OUT, OUT // 2)], OUT**3, OUT**3, 2),
    "a head by a kernel": (Unseen, [(ROWS, WIDE), (OUT, WIDE)], PRODUCT, PRODUCT, 2),
    "gradients in the forward": (InForward, [(ROWS, WIDE), (OUT, WIDE)], PRODUCT, 0, 2),
    "gradients of squares": (InForward, [(WIDE, WIDE), (WIDE, WIDE)], 2 * WIDE**3, 0, 2),
    "its own backward": (ByHand, [(WIDE, WIDE), (WIDE, WIDE)], 2 * WIDE**3, 0, 2),
    "two layers": (Perceptron, [(ROWS, WIDE), (OUT, WIDE), (WIDE, OUT)], 2 * PRODUCT, 2 * PRODUCT, 2),
    "attention": (Attention, [(3, ROWS, WIDE)] * 3, 2 * SQUARE, SQUARE, 2),
    "attention by a kernel": (Handed, [(3, ROWS, WIDE)] * 3, 2 * SQUARE, SQUARE, 2),
}


def phases_of(name):
    _, _, forward, again, gradients = FUNCTIONS[name]
    by_phase = {"forward": forward, "recompute": again, "backward": gradients * forward}
    return {phase: flops for phase, flops in by_phase.items() if flops}


@each_row("name", FUNCTIONS)
def test_products_that_a_backward_of_its_own_repeats_are_recompute(name):
    function, sizes, *_ = FUNCTIONS[name]
    operands = [random(*size) for size in sizes]

    def step():
        squared(function.apply(*operands)).backward()

    assert counted(step).by_phase == phases_of(name)
    with pytest.MonkeyPatch.context() as patch:  # as on an accelerator: the frames of the caller of `backward` are gone
        patch.setattr(phases, "innermost", lambda: None)
        assert counted(step).by_phase == phases_of(name)


@each_row("name", FUNCTIONS)
def test_functions_after_others_are_as_if_each_was_alone(name):
    function, sizes, *_ = FUNCTIONS[name]
    steps = [[random(*size) for size in sizes] for _ in range(3)]

    def step():
        for operands in steps[:2]:  # what the first backward frees, the next forward may get
            squared(function.apply(*operands)).backward()
        chain = squared(function.apply(*[operand * 1 for operand in steps[2]]))
        (chain + squared(function.apply(*[operand * chain for operand in steps[2]]))).backward()

    assert counted(step).by_phase == {phase: 4 * flops for phase, flops in phases_of(name).items()}


@each_row("use_reentrant", [False, True])
@each_row("name", FUNCTIONS)
def test_a_checkpoint_around_it_repeats_its_forward_once_more(name, use_reentrant):
    function, sizes, forward, again, gradients = FUNCTIONS[name]
    operands = [random(*size) for size in sizes]

    def step():
        squared(
            checkpoint(lambda *tensors: function.apply(*tensors) * 1, *operands, use_reentrant=use_reentrant)
        ).backward()

    expected = {"forward": forward, "recompute": forward + again, "backward": gradients * forward}
    assert counted(step).by_phase == expected


@pytest.mark.parametrize("name", ["two layers", "its own backward", "attention"])
def test_a_backward_that_can_be_differentiated_is_the_same(name):
    function, sizes, *_ = FUNCTIONS[name]
    operands = [random(*size) for size in sizes]
    work = counted(lambda: torch.autograd.grad(squared(function.apply(*operands)), operands, create_graph=True))
    assert work.by_phase == phases_of(name)


def attend(query, key, value):
    return torch.softmax(query @ key.transpose(-1, -2), -1) @ value


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_of_compiled_attention_repeat_nothing(checkpointed):
    operands = [random(3, ROWS, WIDE) for _ in range(3)]
    compiled = torch.compile(attend, backend="aot_eager")

    def step():
        out = checkpoint(compiled, *operands, use_reentrant=False) if checkpointed else compiled(*operands)
        squared(out).backward()

    step()  # compiles
    work = counted(step)
    torch._dynamo.reset()
    scores = 2 * 3 * ROWS * ROWS * WIDE
    again = {"recompute": work.by_phase["recompute"]} if checkpointed else {}
    assert work.by_phase == {"forward": 2 * scores, "backward": 4 * scores, **again}
