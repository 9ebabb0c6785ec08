"""Whatever runs while it is counted comes out as without the counter, and leaves nothing on the stack of modes."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from rows import each_row
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from perf_callbacks.flops.counting.counter import FlopCounter

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
]
ROWS, WIDE, OUT = 4, 8, 6
PRODUCT = 2 * ROWS * WIDE * OUT


class ByNumpy(torch.autograd.Function):
    """A kernel that torch doesn't see: it goes past the dispatcher, forward and backward."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(x.detach().numpy() @ weight.detach().numpy().T)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = [saved.detach().numpy() for saved in ctx.saved_tensors]
        return torch.from_numpy(gradient.numpy() @ weight), torch.from_numpy(gradient.numpy().T @ x)


def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.T


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def gradients(ctx, gradient):
    x, weight = ctx.saved_tensors
    return gradient @ weight, gradient.T @ x


def custom_operation(name):
    """A product as an operation that torch has no formula for."""
    operation = torch.library.custom_op(f"{name}::linear", multiply, mutates_args=())
    operation.register_autograd(gradients, setup_context=save)
    return operation


custom_linear = custom_operation("perf_callbacks_zoo")


class Layer(nn.Module):
    """A weight multiplied by some function."""

    def __init__(self, multiply=functional.linear):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(OUT, WIDE))
        self.multiply = multiply

    def forward(self, x):
        return self.multiply(x, self.weight)


class Attending(nn.Module):
    """Projections to queries, keys and values, and some attention of two heads."""

    def __init__(self, attention):
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(WIDE, WIDE, bias=False) for _ in range(3))
        self.attention = attention

    def forward(self, x):
        return self.attention(*[part(x).unflatten(-1, (2, WIDE // 2)).transpose(1, 2) for part in self.projections])


def flex(query, key, value):
    """Without gradients: on a CPU it has none."""
    with torch.no_grad():
        mixed = flex_attention(query.detach(), key.detach(), value.detach())
    return mixed + value


def nested():
    rows = [torch.randn(length, WIDE) for length in (3, 5)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def dense():
    return torch.randn(ROWS, WIDE)


class Strange(NamedTuple):
    """Something that counters trip over."""

    model: Callable[[], nn.Module]
    batch: Callable[[], torch.Tensor] = dense


STRANGE = {
    "a kernel past the dispatcher": Strange(lambda: Layer(ByNumpy.apply)),
    "a custom operation": Strange(lambda: Layer(custom_linear)),
    "flex attention": Strange(lambda: Attending(flex), lambda: torch.randn(2, 16, WIDE)),
    "a jagged linear layer": Strange(lambda: nn.Linear(WIDE, OUT), nested),
    "jagged attention": Strange(lambda: Attending(functional.scaled_dot_product_attention), nested),
    "dropout": Strange(lambda: nn.Sequential(nn.Linear(WIDE, OUT), nn.Dropout())),
}


def values(y):
    return y.values() if y.is_nested else y


def step(strange, *, within=None):
    """What a step leaves behind: loss, gradients, and how far the random numbers went."""
    torch.manual_seed(0)
    model, batch = strange.model(), strange.batch()
    with torch.compiler.set_stance("force_eager"), within or torch.enable_grad():
        loss = values(model(batch)).square().mean()
        loss.backward()
    return [
        loss.detach(),
        *[weight.grad for weight in model.parameters() if weight.grad is not None],
        torch.get_rng_state(),
    ]


PROJECTION, FLEX = 2 * (2 * 16) * WIDE * WIDE, 2 * (2 * 2) * 16 * 16 * (WIDE // 2)
JAGGED = 2 * (3 + 5) * WIDE
COUNTED = {
    "a kernel past the dispatcher": {},
    # the operation is opaque; its backward is made of products that are not, and computes both gradients
    "a custom operation": {"backward": 2 * PRODUCT},
    # on a CPU it goes forward alone, and what is added to it needs a gradient of the last projection
    "flex attention": {"forward": 3 * PROJECTION + 2 * FLEX, "backward": PROJECTION},
    "a jagged linear layer": {"forward": JAGGED * OUT, "backward": JAGGED * OUT},
    "jagged attention": {
        "forward": 3 * JAGGED * WIDE + 2 * 2 * (3 * 3 + 5 * 5) * WIDE,
        "backward": 3 * JAGGED * WIDE + 2 * 2 * 2 * (3 * 3 + 5 * 5) * WIDE,
    },
    "dropout": {"forward": PRODUCT, "backward": PRODUCT},
}


@each_row("name", STRANGE)
def test_a_step_comes_out_as_without_the_counter_and_is_counted(name):
    counter = FlopCounter()
    with_counter, without = step(STRANGE[name], within=counter), step(STRANGE[name])
    assert all(torch.equal(a, b) for a, b in zip(with_counter, without, strict=True))
    assert _get_current_dispatch_mode_stack() == []
    assert not counter.errors
    assert counter.work().by_phase == COUNTED[name]
    assert counter.observed.unknown == ({"perf_callbacks_zoo::linear": 1} if "custom" in name else {})
    assert (counter.weights.coverage() == 0.0) == (name == "a kernel past the dispatcher")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_step_goes_on_as_it_came_and_leaves_no_mode(error):
    def fail(x, weight):
        raise error("of the step")

    with pytest.raises(error, match="of the step"):
        step(Strange(lambda: Layer(fail)), within=FlopCounter())
    assert _get_current_dispatch_mode_stack() == []


def test_an_error_of_an_operation_goes_on_as_it_came():
    x, weight = torch.randn(2, 3), torch.randn(4, 5)
    with pytest.raises(RuntimeError) as without:
        x @ weight
    with pytest.raises(RuntimeError) as within, FlopCounter():
        x @ weight
    assert str(within.value) == str(without.value)
    assert _get_current_dispatch_mode_stack() == []


def test_an_error_in_the_backward_leaves_no_mode_and_the_next_step_counts():
    layer, failing = Layer(), Layer(ByNumpy.apply)
    x = dense().requires_grad_()
    y = failing(x)
    x.register_hook(lambda _: (_ for _ in ()).throw(ValueError("of a hook")))
    with pytest.raises(ValueError, match="of a hook"), FlopCounter():
        y.sum().backward()
    assert _get_current_dispatch_mode_stack() == []
    with FlopCounter() as counter:
        layer(dense()).sum().backward()
    assert counter.work().by_phase == {"forward": PRODUCT, "backward": PRODUCT}


def test_a_step_without_a_loss_is_counted():
    layer = Layer()
    with FlopCounter() as counter:
        layer(dense())
    assert counter.work().by_phase == {"forward": PRODUCT}
    with FlopCounter() as counter:
        pass
    assert counter.work().by_phase == {}
    assert counter.work().model_flops == 0


def test_another_mode_within_sees_every_operation_and_stays_where_it_is():
    from torch.utils.flop_counter import FlopCounterMode

    layer, x = Layer(), dense()
    with FlopCounter() as counter, FlopCounterMode(display=False) as torchs:
        layer(x).sum().backward()
    assert torchs.get_total_flops() == counter.work().hardware_flops == 2 * PRODUCT
