"""FLOPs, parameters and activations belong to the module whose forward made them, in whatever way it ran."""

import json
from pathlib import Path

import pytest
import torch
from counted import ids
from forked import run
from torch import nn
from torch.utils.checkpoint import checkpoint
from trainings import models

from perf_callbacks.flops import offline
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.counting.module_shares import MOST_LINES
from perf_callbacks.kernel.fit.module_paths import ModulePaths
from perf_callbacks.kernel.records.module_records import OPTIMIZER, OTHERS, OUTSIDE
from perf_callbacks.memory.allocations import Allocations

ROWS, WIDTH = 4, 8
ONE = 2 * ROWS * WIDTH * WIDTH
"""FLOPs of one forward of a layer."""


def layer():
    return nn.Linear(WIDTH, WIDTH)


def inputs():
    return torch.randn(ROWS, WIDTH, requires_grad=True)


def shares(model, run):
    """Lines by path. They sum to what was counted."""
    with FlopCounter(model=model) as counter:
        run()
    assert not counter.errors
    total = counter.work()
    lines = counter.modules.lines(total)
    assert counter.modules.failure is None
    assert sum(line.model_flops for line in lines) == total.model_flops
    assert sum(line.hardware_flops for line in lines) == total.hardware_flops
    return {line.path: line for line in lines}


def flops(model, run):
    """Forward, backward and extra in units of one layer, by path."""
    found = shares(model, run)
    return {
        path: (line.forward_flops / ONE, line.backward_flops / ONE, line.extra_flops / ONE)
        for path, line in found.items()
        if line.hardware_flops
    }


class Net(nn.Module):
    """Two layers and a product of its own."""

    def __init__(self, way=lambda module, x: module(x)):
        super().__init__()
        self.first, self.second = layer(), layer()
        self.own = nn.Parameter(torch.eye(WIDTH))
        self.way = way

    def forward(self, x):
        return self.way(self.second, self.way(self.first, x) @ self.own)


def test_gradients_belong_to_the_module_of_the_forward():
    model = Net()
    assert flops(model, lambda: model(inputs()).sum().backward()) == dict.fromkeys(["first", "second", ""], (1, 2, 0))


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_belongs_to_the_module_that_runs_again(reentrant):
    model = Net(lambda module, x: checkpoint(lambda x: module(x).tanh(), x, use_reentrant=reentrant))
    extra = {"first": 1, "second": 1, "": 0}
    assert flops(model, lambda: model(inputs()).sum().backward()) == {path: (1, 2, extra[path]) for path in extra}


def test_a_whole_checkpointed_model_has_the_same_lines():
    model = nn.Sequential(Net())
    found = flops(model, lambda: checkpoint(model, inputs(), use_reentrant=True).sum().backward())
    assert found == dict.fromkeys(["0.first", "0.second", "0"], (1, 2, 1))


def test_a_module_called_twice_and_at_two_places_is_one_line():
    model = nn.ModuleDict({"a": layer()})
    model["b"] = model["a"]
    assert flops(model, lambda: model["b"](model["a"](model["a"](inputs()))).sum().backward()) == {"a": (3, 6, 0)}
    assert shares(model, lambda: model["a"](inputs()))["a"].parameters == WIDTH * WIDTH + WIDTH


def test_accumulated_batches_and_late_backwards_are_summed():
    model = Net()

    def run():
        losses = [model(inputs()).sum() for _ in range(3)]
        for loss in losses:
            loss.backward()

    assert flops(model, run) == dict.fromkeys(["first", "second", ""], (3, 6, 0))


def test_products_outside_of_modules_and_of_the_optimizer_have_lines():
    model, weight = layer(), torch.randn(WIDTH, WIDTH, requires_grad=True)

    class Whitening(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["params"][0].grad @ torch.eye(WIDTH)
            return super().step(closure)

    def run():
        (model(inputs()) @ weight).sum().backward()
        Whitening(model.parameters(), lr=0.1).step()

    found = flops(model, run)
    assert found == {"": (1, 2, 0), OUTSIDE: (1, 2, 0), OPTIMIZER: (0, 0, WIDTH / ROWS)}


def test_modules_of_another_model_belong_to_no_module():
    model, other = layer(), layer()
    assert flops(model, lambda: other(model(inputs())).sum().backward()) == {"": (1, 2, 0), OUTSIDE: (1, 2, 0)}


def test_a_module_that_raises_does_not_disturb_the_next():
    class Raises(nn.Module):
        def forward(self, x):
            raise ValueError(x.shape)

    class Tries(Net):
        def __init__(self):
            super().__init__()
            self.bad = nn.Sequential(layer(), Raises())

        def forward(self, x):
            try:
                self.bad(x)
            except ValueError:
                return super().forward(x)

    model = Tries()
    found = flops(model, lambda: model(inputs()).sum().backward())
    assert found == {"bad.0": (1, 0, 0)} | dict.fromkeys(["first", "second", ""], (1, 2, 0))


def test_products_in_hooks_belong_to_the_hooked_module():
    model = Net()
    model.first.register_forward_hook(lambda _, __, out: out @ torch.eye(WIDTH))
    assert flops(model, lambda: model(inputs()).sum().backward())["first"] == (2, 3, 0)


def test_a_function_with_its_own_backward_belongs_to_its_caller():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            return gradient @ weight.T, x.T @ gradient

    class Holder(nn.Linear):
        def forward(self, x):
            return Doubled.apply(x, self.weight)

    model = nn.Sequential(layer(), nn.Identity(), Holder(WIDTH, WIDTH))
    assert flops(model, lambda: model(inputs()).sum().backward()) == {"0": (1, 2, 0), "2": (1, 2, 0)}


def test_a_penalty_on_gradients_belongs_to_the_layer():
    model = nn.Sequential(layer(), nn.Tanh())

    def run():
        x = inputs()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    assert [*flops(model, run)] == ["0"]


def test_a_backward_within_a_forward_belongs_to_the_inner_module():
    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = layer()

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(self.inner(x).square().sum(), x, create_graph=True)[0]

    model = Energy()
    assert [*flops(model, lambda: model(inputs()).sum().backward())] == ["inner"]


def test_attention_uses_the_weights_of_its_parts_and_is_one_line():
    model = nn.MultiheadAttention(WIDTH, 2)
    found = shares(model, lambda: model(*[torch.randn(3, ROWS, WIDTH)] * 3)[0].sum().backward())
    assert [path for path, line in found.items() if line.hardware_flops] == [""]


def test_layers_of_a_list_share_a_line_and_others_do_not():
    model = nn.ModuleDict(
        {
            "layers": nn.ModuleList(nn.ModuleDict({"up": layer(), "down": layer()}) for _ in range(3)),
            "head": nn.Sequential(layer(), nn.Tanh(), layer()),
        }
    )
    assert {path: number for path, number in ModulePaths(model).modules.items() if number > 1} == {
        "layers.*": 3,
        "layers.*.up": 3,
        "layers.*.down": 3,
    }
    assert {"head.0", "head.2"} <= {*ModulePaths(model).modules}


def test_wrappers_leave_no_trace_in_paths():
    class DistributedDataParallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    model = nn.ModuleDict({"layers": nn.ModuleList([layer(), layer()]), "module": layer()})
    plain = ModulePaths(model)
    model["layers"][0] = torch.compile(model["layers"][0], backend="eager")
    wrapped = ModulePaths(DistributedDataParallel(torch.compile(model, backend="eager")))
    assert plain.modules == wrapped.modules
    assert plain.parameters == wrapped.parameters == {"": 0, "layers": 0, "layers.*": 144, "module": 72}


def test_a_module_that_contains_itself_is_walked_once():
    model = layer()
    model.again = model
    assert ModulePaths(model).modules == {"": 1}


def test_many_modules_are_cut_to_a_few_lines():
    model = nn.ModuleDict({f"layer_{number}": layer() for number in range(60)})

    def run():
        x = inputs()
        for one in model.values():
            x = one(x)
        (x[:1, :1] @ torch.ones(1, 1)).sum().backward()

    found = shares(model, run)
    assert len(found) == MOST_LINES
    assert found[OUTSIDE].forward_flops == 2
    assert sum(line.modules for line in found.values()) == 60
    assert sum(line.parameters for line in found.values()) == sum(one.numel() for one in model.parameters())
    assert found[OTHERS].forward_flops == (60 - MOST_LINES + 2) * ONE


@pytest.mark.parametrize("checkpointing", [None, True, False])
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated:FutureWarning")
def test_activations_sum_to_those_of_the_step(checkpointing):
    model = models.llama(num_hidden_layers=2).train()
    if checkpointing is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
    allocations = Allocations("cpu")
    with FlopCounter(model=model, follow=allocations.made) as counter:
        model(**ids(2, 8)).loss.backward()
    lines = {line.path: line for line in counter.modules.lines(counter.work())}
    assert sum(line.activation_bytes for line in lines.values()) == allocations.activation_bytes > 0
    up = lines["model.layers.*.mlp.up_proj"]
    assert (up.modules, up.activation_bytes) == (2, 2 * 16 * 32 * 4 * (checkpointing is None))


def test_on_a_device_the_backward_has_a_thread_of_its_own(tmp_path):
    """The first way is reentrant: then the device's thread numbers its nodes as the main thread did."""
    program = Path(__file__).with_name("modules_on_device.py")
    status, output, errors = run(program, imports=("torch._dynamo",), directory=tmp_path)
    assert status == 0, errors
    reentrant, plain, early, again = json.loads(output.splitlines()[-1])
    ends = {"first": [1, 1, 0], "last": [1, 2, 0]}
    assert plain == [ends | {"up": [1, 2, 0], "down": [1, 2, 0]}, False]
    assert reentrant == early == again == [ends | {"up": [1, 2, 1], "down": [1, 2, 1]}, False]


def test_activations_are_unknown_without_a_backward():
    model = Net()
    assert {line.activation_bytes for line in shares(model, lambda: model(inputs())).values()} == {None}


def test_a_copy_with_fake_tensors_has_the_same_lines():
    model, batch = models.llama(), ids(2, 8)
    copied = offline.count(model, offline.example_of(batch))
    with FlopCounter(model=model) as counter:
        model(**batch).loss.backward()
    assert copied.modules.lines(copied.work()) == counter.modules.lines(counter.work())


def test_an_error_leaves_the_count_as_it_was(monkeypatch):
    model = Net()
    with FlopCounter() as plain:
        model(inputs()).sum().backward()
    with FlopCounter(model=model) as counter:
        monkeypatch.setattr(counter.modules, "_path", lambda: 1 / 0)
        model(inputs()).sum().backward()
    assert counter.work() == plain.work()
    assert counter.modules.lines(counter.work()) == ()
    assert counter.modules.failure == "ZeroDivisionError: division by zero"


def test_lines_that_miss_flops_are_dropped():
    model = Net()
    with FlopCounter(model=model) as counter:
        model(inputs())
        counter.modules.forget()
        model(inputs())
    assert counter.modules.lines(counter.work()) == ()
    assert counter.modules.failure == "they don't sum to the FLOPs of the step"
