"""Who asked for the work: the model going forward and backward, somebody who does it again, or the optimizer."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, vjp
from torch.utils.checkpoint import checkpoint

from perf_callbacks.flops.counter import FlopCounter

ROWS, WIDE, OUT = 4, 8, 6
PRODUCT = 2 * ROWS * WIDE * OUT


def squared(y):
    return y.square().sum()


def counted(work):
    with FlopCounter() as counter:
        work()
    return counter.work()


def inputs(**options):
    return torch.randn(ROWS, WIDE, **options)


def layer():
    return nn.Linear(WIDE, OUT, bias=False)


def again(x, weight):
    """A product that neither a module nor a checkpoint stands around."""
    return x @ weight.T


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


def test_a_penalty_on_gradients_of_what_is_checkpointed_does_it_again_in_each_backward():
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
def test_a_forward_that_is_run_again_by_a_functions_own_backward_is_recompute(kind):
    model, x = layer(), inputs(requires_grad=True)
    by = model if kind is ByModule else model.weight
    work = counted(lambda: squared(kind.apply(x, by)).backward())
    assert work.by_phase == {"forward": PRODUCT, "recompute": PRODUCT, "backward": 2 * PRODUCT}


def test_a_functions_own_backward_that_runs_nothing_again_is_backward():
    model, x = layer(), inputs(requires_grad=True)
    work = counted(lambda: squared(ByHand.apply(x, model.weight)).backward())
    assert work.by_phase == {"forward": PRODUCT, "backward": 2 * PRODUCT}
    assert work.hardware_flops == work.model_flops


def test_a_penalty_on_gradients_of_a_function_with_its_own_backward_does_nothing_again():
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


def newton_schulz(rows, columns, *, steps=5):
    """Muon: X X', its square, and that times X, as often as it iterates."""
    small, large = sorted((rows, columns))
    return steps * 2 * (2 * small * small * large + small**3)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_is_the_optimizers_work_and_the_closure_in_its_step_is_the_models():
    model, x = layer(), inputs()
    optimizer = torch.optim.Muon(model.parameters(), lr=0.01)

    def closure():
        loss = squared(model(x))
        loss.backward()
        return loss

    work = counted(lambda: optimizer.step(closure))
    assert work.by_phase == {"forward": PRODUCT, "backward": PRODUCT, "optimizer": newton_schulz(WIDE, OUT)}
    assert work.model_flops == 2 * PRODUCT


@pytest.mark.parametrize("through", [lambda model, x: model(x), lambda model, x: again(x, model.weight)])
def test_a_reentrant_checkpoint_in_a_closure_is_forward_and_then_recompute(through):
    model, x = layer(), inputs(requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def closure():
        loss = squared(checkpoint(lambda x: through(model, x), x, use_reentrant=True))
        loss.backward()
        return loss

    work = counted(lambda: optimizer.step(closure))
    assert work.by_phase == {"forward": PRODUCT, "recompute": PRODUCT, "backward": 2 * PRODUCT}


class Objects:
    """A closure that is an object."""

    def __init__(self, closure):
        self.closure = closure

    def __call__(self):
        return self.closure()

    def method(self):
        return self.closure()


WAYS = {
    "a function": lambda closure: closure,
    "an object": Objects,
    "a method": lambda closure: Objects(closure).method,
    "a function with arguments": lambda closure: partial(lambda inner: inner(), closure),
}


@pytest.mark.parametrize("way", [pytest.param(way, id=name) for name, way in WAYS.items()])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("gradients", [torch.enable_grad, torch.no_grad])
def test_a_product_in_a_closure_is_forward_though_no_module_asked_and_nothing_needs_a_gradient(way, kind, gradients):
    model, x, fixed = layer(), inputs(), torch.randn(OUT, WIDE)
    optimizer = kind(model.parameters(), lr=0.01, **({"max_iter": 1} if kind is torch.optim.LBFGS else {}))

    def closure():
        with gradients():
            wanted = again(x, fixed)
        loss = squared(model(x) - wanted)
        loss.backward()
        return loss

    work = counted(lambda: optimizer.step(way(closure)))
    assert work.by_phase.get("forward") == 2 * PRODUCT
    assert work.by_phase.get("backward") == PRODUCT
    assert work.by_phase.get("optimizer", 0) < PRODUCT


class OnData(torch.optim.Optimizer):
    """One that multiplies, with gradients on, and so on `.data`."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for parameter in self.param_groups[0]["params"]:
            gradient = parameter.grad.data
            parameter.data.add_((gradient @ gradient.T) @ gradient, alpha=-0.01)
        return loss


@pytest.mark.parametrize("closed", [True, False])
def test_an_optimizer_that_leaves_gradients_on_is_not_taken_for_the_model(closed):
    model, x = layer(), inputs()
    optimizer = OnData(model.parameters())

    def closure():
        loss = squared(model(x))
        loss.backward()
        return loss

    work = counted(lambda: optimizer.step(closure) if closed else (closure(), optimizer.step()))
    assert work.by_phase == {"forward": PRODUCT, "backward": PRODUCT, "optimizer": 2 * 2 * OUT * OUT * WIDE}


def test_what_lbfgs_tries_is_the_models_work_and_its_own_products_are_not():
    model, x = layer(), inputs()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3, line_search_fn="strong_wolfe")
    tries = []

    def closure():
        optimizer.zero_grad()
        loss = squared(model(x))
        loss.backward()
        tries.append(loss)
        return loss

    work = counted(lambda: optimizer.step(closure))
    assert len(tries) > 1
    assert work.model_flops == len(tries) * 2 * PRODUCT
    assert set(work.by_phase) == {"forward", "backward", "optimizer"}
    assert work.by_phase["optimizer"] % (2 * WIDE * OUT) == 0  # products of two vectors as long as the weights


def test_a_hook_on_a_gradient_is_backward():
    model, x = layer(), inputs(requires_grad=True)
    x.register_hook(lambda gradient: gradient @ torch.eye(WIDE))
    work = counted(lambda: squared(model(x)).backward())
    assert work.by_phase == {"forward": PRODUCT, "backward": 2 * PRODUCT + 2 * ROWS * WIDE * WIDE}
