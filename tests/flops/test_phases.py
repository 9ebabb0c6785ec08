"""Who asked for the work: the model going forward and backward, or somebody who does it again."""

import pytest
import torch
from flops.products import OUT, PRODUCT, ROWS, WIDE, again, counted, inputs, layer, squared
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


def test_a_penalty_on_gradients_is_backward_and_nothing_is_done_again():
    model, x = layer(), inputs(requires_grad=True)

    def step():
        (gradient,) = torch.autograd.grad(squared(model(x)), x, create_graph=True)
        squared(gradient).backward()

    work = counted(step)
    # the gradient of the input; then of that product both gradients, and of the forward's both
    assert work.by_phase == {"forward": PRODUCT, "backward": (1 + 2 + 2) * PRODUCT}


def test_a_gradient_penalty_recomputes_checkpoints_in_each_backward():
    model, x = layer(), inputs(requires_grad=True)

    def step():
        y = checkpoint(lambda x: model(x).tanh(), x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(squared(y), x, create_graph=True)
        squared(gradient).backward()

    work = counted(step)
    assert work.by_phase == {"forward": PRODUCT, "recompute": 2 * PRODUCT, "backward": (1 + 2 + 2) * PRODUCT}


def test_gradients_of_functions_are_backward():
    model, x = layer(), inputs()
    weights = dict(model.named_parameters())
    work = counted(lambda: grad(lambda weights: squared(functional_call(model, weights, x)))(weights))
    assert work.by_phase == {"forward": PRODUCT, "backward": PRODUCT}


def test_products_with_a_jacobian_are_backward():
    model, x = layer(), inputs()

    def step():
        y, pull = vjp(lambda x, weight: functional_call(model, {"weight": weight}, x), x, model.weight.detach())
        pull(torch.ones_like(y))

    assert counted(step).by_phase == {"forward": PRODUCT, "backward": 2 * PRODUCT}


def test_a_whole_jacobian_is_as_many_backwards_as_there_are_outputs():
    model, x = layer(), inputs()
    work = counted(lambda: jacrev(model)(x))
    assert work.by_phase == {"forward": PRODUCT, "backward": ROWS * OUT * PRODUCT}


@pytest.mark.parametrize("kind", [ByModule, ByFunction])
def test_a_forward_run_again_by_a_functions_own_backward_is_recompute(kind):
    model, x = layer(), inputs(requires_grad=True)
    by = model if kind is ByModule else model.weight
    work = counted(lambda: squared(kind.apply(x, by)).backward())
    assert work.by_phase == {"forward": PRODUCT, "recompute": PRODUCT, "backward": 2 * PRODUCT}


def test_a_functions_own_backward_that_runs_nothing_again_is_backward():
    model, x = layer(), inputs(requires_grad=True)
    work = counted(lambda: squared(ByHand.apply(x, model.weight)).backward())
    assert work.by_phase == {"forward": PRODUCT, "backward": 2 * PRODUCT}
    assert work.hardware_flops == work.model_flops


def test_a_gradient_penalty_of_a_function_with_backward_recomputes_nothing():
    model, x = layer(), inputs(requires_grad=True)

    def step():
        (gradient,) = torch.autograd.grad(squared(ByHand.apply(x, model.weight)), x, create_graph=True)
        squared(gradient).backward()

    # its own backward makes both gradients, asked or not; that of the penalty goes through the one, then through it
    assert counted(step).by_phase == {"forward": PRODUCT, "backward": (2 + 2 + 2) * PRODUCT}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_function_without_modules_is_recomputed_as_well_as_a_module(use_reentrant):
    model, x = layer(), inputs(requires_grad=True)

    def step():
        squared(checkpoint(lambda x: again(x, model.weight).tanh(), x, use_reentrant=use_reentrant)).backward()

    assert counted(step).by_phase == {"forward": PRODUCT, "recompute": PRODUCT, "backward": 2 * PRODUCT}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch, of itself
def test_a_derivative_in_a_direction_goes_forward_alone():
    model, x = layer(), inputs()
    work = counted(lambda: jvp(model, (x,), (torch.ones_like(x),)))
    # torch does multiply by the direction of the weight, which is zero
    assert work.by_phase == {"forward": 3 * PRODUCT}


def test_gradients_of_gradients_of_functions_do_nothing_again():
    model, x = layer(), inputs()

    def slope(x):
        return squared(grad(lambda x: squared(model(x)))(x))

    work = counted(lambda: grad(slope)(x))
    # the inner gradient is one product; of the outer's path, that of it, and that of the forward
    assert work.by_phase == {"forward": PRODUCT, "backward": 3 * PRODUCT}


def test_a_teacher_is_forward():
    model, teacher, x = layer(), layer(), inputs()

    def step():
        with torch.no_grad():
            wanted = teacher(x)
        squared(model(x) - wanted).backward()

    assert counted(step).by_phase == {"forward": 2 * PRODUCT, "backward": PRODUCT}


def test_two_losses_of_one_forward_are_two_backwards():
    model, x = layer(), inputs()

    def step():
        y = model(x)
        squared(y).backward(retain_graph=True)
        y.sum().backward()

    assert counted(step).by_phase == {"forward": PRODUCT, "backward": 2 * PRODUCT}


def test_a_hook_on_a_gradient_is_backward():
    model, x = layer(), inputs(requires_grad=True)
    x.register_hook(lambda gradient: gradient @ torch.eye(WIDE))
    work = counted(lambda: squared(model(x)).backward())
    assert work.by_phase == {"forward": PRODUCT, "backward": 2 * PRODUCT + 2 * ROWS * WIDE * WIDE}
