"""In the step of an optimizer: what its closure asks for is the model's, the rest is the optimizer's own."""

from functools import partial

import pytest
import torch
from flops.products import OUT, PRODUCT, WIDE, again, counted, inputs, layer, squared
from rows import each_row
from torch.utils.checkpoint import checkpoint


def newton_schulz(rows, columns, *, steps=5):
    """Muon: X X', its square, and that times X, as often as it iterates."""
    small, large = sorted((rows, columns))
    return steps * 2 * (2 * small * small * large + small**3)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_is_the_optimizers_work_and_its_closure_the_models():
    model, x = layer(), inputs()
    optimizer = torch.optim.Muon(model.parameters(), lr=0.01)

    def closure():
        loss = squared(model(x))
        loss.backward()
        return loss

    work = counted(lambda: optimizer.step(closure))
    assert work.by_phase == {"forward": PRODUCT, "backward": PRODUCT, "optimizer": newton_schulz(WIDE, OUT)}
    assert work.model_flops == 2 * PRODUCT


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_an_optimizer_that_steps_within_the_backward_is_the_optimizer():
    model, x = layer(), inputs()
    optimizer = torch.optim.Muon(model.parameters(), lr=0.01)
    model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    work = counted(lambda: squared(model(x)).backward())
    assert work.by_phase == {"forward": PRODUCT, "backward": PRODUCT, "optimizer": newton_schulz(WIDE, OUT)}


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


@each_row("way", [pytest.param(way, id=name) for name, way in WAYS.items()])
@each_row("kind", [torch.optim.SGD, torch.optim.LBFGS])
@each_row("gradients", [torch.enable_grad, torch.no_grad])
def test_a_product_in_a_closure_without_module_or_gradient_is_forward(way, kind, gradients):
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


def test_trials_of_lbfgs_are_the_models_work_and_its_own_products_are_not():
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
