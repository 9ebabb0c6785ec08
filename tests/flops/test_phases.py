"""Who asked for the work: the model going forward and backward, or somebody who does it again."""

import pytest
import torch
from flops.products import OUT, PRODUCT, ROWS, WIDE, again, counted, inputs, layer, squared
from rows import each_row
from torch.func import functional_call, grad, jacrev, jvp, vjp
from torch.utils.checkpoint import checkpoint


class ByModule(torch.autograd.Function):
    """Forgets what it computed and computes it again when asked for gradients, as fused kernels' wrappers do."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.save_for_backward(x)
        ctx.module = module
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.module(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


class ByFunction(torch.autograd.Function):
    """The same with a function, and with `grad` for the gradients."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return again(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = [saved.detach().requires_grad_() for saved in ctx.saved_tensors]
        with torch.enable_grad():
            y = again(x, weight)
        return torch.autograd.grad(y, (x, weight), gradient)


class ByHand(torch.autograd.Function):
    """A linear layer with its own backward, which computes nothing again."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return again(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x


def penalized(y, x):
    (gradient,) = torch.autograd.grad(squared(y), x, create_graph=True)
    squared(gradient).backward()


def vector_by_jacobian(model, x):
    y, pull = vjp(lambda x, weight: functional_call(model, {"weight": weight}, x), x.detach(), model.weight.detach())
    pull(torch.ones_like(y))


def gradient_of_weights(model, x):
    weights = dict(model.named_parameters())
    grad(lambda weights: squared(functional_call(model, weights, x.detach())))(weights)


def gradient_of_gradient(model, x):
    grad(lambda x: squared(grad(lambda x: squared(model(x)))(x)))(x.detach())


def two_losses(model, x):
    y = model(x)
    squared(y).backward(retain_graph=True)
    y.sum().backward()


def taught(model, x):
    with torch.no_grad():
        wanted = layer()(x)
    squared(model(x) - wanted).backward()


# what a model of one product does with its input: products by phase
STEPS = {
    # the gradient of the input; then of that product both gradients, and of the forward's both
    "a penalty on gradients": (lambda model, x: penalized(model(x), x), 1, 0, 1 + 2 + 2),
    "a penalty, checkpointed": (
        lambda model, x: penalized(checkpoint(lambda x: model(x).tanh(), x, use_reentrant=False), x), 1, 2, 1 + 2 + 2
    ),
    # its own backward makes both gradients, asked or not; that of the penalty goes through the one, then through it
    "a penalty on a function": (lambda model, x: penalized(ByHand.apply(x, model.weight), x), 1, 0, 2 + 2 + 2),
    "gradients of functions": (gradient_of_weights, 1, 0, 1),
    "a vector by a Jacobian": (vector_by_jacobian, 1, 0, 2),
    "a whole Jacobian": (lambda model, x: jacrev(model)(x.detach()), 1, 0, ROWS * OUT),
    # torch does multiply by the direction of the weight, which is zero
    "a derivative in a direction": (lambda model, x: jvp(model, (x.detach(),), (torch.ones_like(x),)), 3, 0, 0),
    # the inner gradient is one product; of the outer's path, that of it, and that of the forward
    "a gradient of a gradient": (gradient_of_gradient, 1, 0, 3),
    "a forward again by a module": (lambda model, x: squared(ByModule.apply(x, model)).backward(), 1, 1, 2),
    "a forward again by a function": (lambda model, x: squared(ByFunction.apply(x, model.weight)).backward(), 1, 1, 2),
    "a backward of its own": (lambda model, x: squared(ByHand.apply(x, model.weight)).backward(), 1, 0, 2),
    **{
        f"a checkpointed function, {reentrant=}": (
            lambda model, x, reentrant=reentrant: squared(
                checkpoint(lambda x: again(x, model.weight).tanh(), x, use_reentrant=reentrant)
            ).backward(), 1, 1, 2
        )
        for reentrant in (True, False)
    },
    "a teacher": (taught, 2, 0, 2),
    "two losses of a forward": (two_losses, 1, 0, 4),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch, of itself
@each_row("name", STEPS)
def test_products_belong_to_the_phase_that_asks_for_them(name):
    run, forward, recompute, backward = STEPS[name]
    model, x = layer(), inputs(requires_grad=True)
    work = counted(lambda: run(model, x))
    phases = {"forward": forward, "recompute": recompute, "backward": backward}
    assert work.by_phase == {phase: products * PRODUCT for phase, products in phases.items() if products}
    assert work.hardware_flops - work.model_flops == recompute * PRODUCT


def test_a_hook_on_a_gradient_is_backward():
    model, x = layer(), inputs(requires_grad=True)
    x.register_hook(lambda gradient: gradient @ torch.eye(WIDE))
    work = counted(lambda: squared(model(x)).backward())
    assert work.by_phase == {"forward": PRODUCT, "backward": 2 * PRODUCT + 2 * ROWS * WIDE * WIDE}
