"""Marks of modules in traces that torch.profiler records, and the model afterwards."""

import copy
import gc
import pickle
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.profiles.module_marks import marks, names
from perf_callbacks.profiles.reduction import reduce_file

CALL = nn.Module.__call__


class Block(nn.Module):
    def __init__(self, again=None):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
        self.again = again

    def forward(self, x):
        if self.again is None:
            return x + self.mlp(x)
        return x + checkpoint(self.mlp, x, use_reentrant=self.again)


class Model(nn.Module):
    def __init__(self, again=None):
        super().__init__()
        self.layers = nn.ModuleList([Block(again) for _ in range(2)])
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Failing(nn.Module):
    def forward(self, x):
        raise ValueError(x)


@pytest.fixture
def patches():
    found = Patches()
    yield found
    found.restore()
    assert nn.Module.__call__ is CALL


def trained(model, steps=2):
    x = torch.ones(8, 16, requires_grad=True)
    for _ in range(steps):
        model(x).square().sum().backward()


def reduced(directory, patches, model, run):
    """The profile of what ran, with marks."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recorded:
        marks(model)(patches)
        run()
        patches.restore()
    recorded.export_chrome_trace(str(directory / "trace.json"))
    return reduce_file(directory / "trace.json")


@pytest.mark.parametrize("again", [None, True, False], ids=["plain", "reentrant checkpoint", "checkpoint"])
def test_each_path_has_its_forward_and_its_backward(tmp_path, patches, again):
    model = Model(again)
    found = reduced(tmp_path, patches, model, partial(trained, model))
    times, backward = found.module_seconds, found.module_backward_seconds
    layers = {f"layers.*.mlp.{place}" for place in range(3)}
    assert {*times} - {"(no module)", "layers.*.mlp", ""} == {"head", "layers.*", *layers}
    assert sum(times.values()) == pytest.approx(found.busy_seconds)
    assert all(0 < backward[path] < times[path] for path in ("head", *layers))
    products = [one for one in found.operations if one.flops]
    assert {one.name for one in products} <= {"aten::addmm", "aten::mm"}


def test_flops_of_a_trace_are_the_products(tmp_path, patches):
    model = Model()
    found = reduced(tmp_path, patches, model, partial(trained, model, 1))
    forward = 2 * 8 * (2 * 2 * 16 * 64 + 16 * 4)
    assert found.flops == 3 * forward  # two gradients of each product: the input needs one too


def test_a_call_that_fails_ends_its_mark(tmp_path, patches):
    model, x = nn.Sequential(Failing(), nn.Linear(16, 16)), torch.ones(16, 16)

    def run():
        with pytest.raises(ValueError, match="nothing"):
            model("nothing")
        model[1](x)

    found = reduced(tmp_path, patches, model, run)
    assert [*found.module_seconds] == ["1"]


def test_copies_and_files_of_a_marked_model_hold_nothing_of_marks(patches):
    model = Model()
    plain = pickle.dumps(model)
    marks(model)(patches)
    assert nn.Module.__call__ is not CALL
    assert pickle.dumps(model) == plain
    copied = copy.deepcopy(model)
    patches.restore()
    assert not copied._forward_hooks
    trained(copied)


def test_results_are_bitwise_the_same(patches):
    model, x = Model(), torch.ones(8, 16)
    plain = model(x)
    marks(model)(patches)
    assert torch.equal(model(x), plain)


@torch.no_grad()
def test_compiled_code_stays_compiled(patches):
    compiled = []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    model, x = Model(), torch.ones(8, 16)
    model.layers[0].compile(backend=backend)
    model.layers[1] = torch.compile(model.layers[1], backend=backend)
    whole = torch.compile(lambda x: Model.forward(model, x) * 2, backend=backend)
    for run in (model, whole):
        run(x)
    before = len(compiled)
    marks(model)(patches)
    for run in (model, whole):
        run(x)
    patches.restore()
    for run in (model, whole):
        run(x)
    assert len(compiled) == before > 0


def test_a_model_that_is_gone_or_no_model_has_no_marks(patches):
    begin, nothing = marks(nn.Linear(2, 2)), marks(None)
    gc.collect()
    for one in (begin, nothing):
        one(patches)
    assert nn.Module.__call__ is CALL


def test_marks_keep_no_model_alive():
    model = nn.Linear(2, 2)
    seen = weakref.ref(model)
    begin, patches = marks(model), Patches()
    begin(patches)
    del model
    gc.collect()
    patches.restore()
    assert seen() is None


def test_three_levels_are_marked():
    model = Model()
    found = names(model)
    assert found[id(model)] == "nn.Module: "
    assert found[id(model.layers[1].mlp[2])] == "nn.Module: layers.*.mlp.2"
    deep = nn.Sequential()
    for name in "abcd":
        deep = nn.ModuleDict({name: deep})
    assert sorted(names(deep).values()) == ["nn.Module: ", "nn.Module: d", "nn.Module: d.c", "nn.Module: d.c.b"]
