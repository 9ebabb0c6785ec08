"""However a measured block ends, and whatever fails in it: training is as it would have been, and all is put back."""

import gc
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from faults import ERRORS, EVALUATES_ALWAYS, OFTEN, ONCE, TWICE, Fault, parts, warnings
from sampling import sampled
from slow_backward import SlowBackward
from tiny import records, steps
from torch import nn

from perf_callbacks import PerfConfig, Summary
from perf_callbacks.kernel.failures import describe
from perf_callbacks.loop import measure


class Trap:
    """Raises at one place, in the third step."""

    def __init__(self, place=None, error=None):
        self.place, self.error, self.step = place, error, 1

    def __call__(self, place):
        if place == self.place and self.step == 3:
            self.place = None
            raise self.error


class Model(nn.Module):
    def __init__(self, trap):
        super().__init__()
        self.linear, self.dropout, self.trap = nn.Linear(4, 1), nn.Dropout(), trap

    def forward(self, inputs):
        self.trap("model")
        return SlowBackward.apply(self.dropout(self.linear(inputs)), self.trap)


class Optimizer(torch.optim.Optimizer):
    def __init__(self, model, trap):
        super().__init__(model.parameters(), {})
        self.trap = trap

    @torch.no_grad()
    def step(self, closure=None):
        self.trap("optimizer")
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(0.1 * parameter.grad)

    def zero_grad(self, set_to_none=True):  # noqa: FBT002 as in torch
        self.trap("zero_grad")
        super().zero_grad(set_to_none)


class Loader:
    def __init__(self, trap):
        self.trap = trap

    def __iter__(self):
        for seed in range(6):
            self.trap("loader")
            yield torch.rand(2, 4, generator=torch.Generator().manual_seed(seed))


def objects(trap=None):
    torch.manual_seed(0)
    trap = trap or Trap()
    model = Model(trap)
    model.register_forward_pre_hook(lambda *_: None)
    optimizer = Optimizer(model, trap)
    optimizer.register_step_post_hook(lambda *_: None)
    return {"model": model, "optimizer": optimizer, "loader": Loader(trap)}


def train(perf, model, optimizer, loader):
    """Everything that can be done in a block; gives the losses."""
    losses = []
    trap = model.trap
    for inputs in perf.loader:
        loss = model(inputs).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        trap.step += 1
        optimizer.zero_grad()
        gc.collect(0)
        with perf.evaluation():
            trap("evaluation")
        with perf.checkpoint():
            trap("checkpoint")
            perf.state()
        model.eval()
        with torch.no_grad():
            losses.append(model(inputs).sum().item())
        model.train()
        perf.row()
        _ = perf.summary
        trap("user code")
    return losses


def as_found(model, optimizer, loader):
    """What a block may change, one level deep."""
    found = {"backward": torch.autograd.backward, "collector": list(gc.callbacks)}
    for owner in (model, optimizer, loader):
        values = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(owner).items()}
        found[type(owner).__name__] = values | {"training": True}
    return found


PLACES = ["loader", "model", "backward", "optimizer", "zero_grad", "evaluation", "checkpoint", "user code"]


@pytest.mark.parametrize("error", ERRORS, ids=describe)
@pytest.mark.parametrize("place", PLACES)
def test_what_ends_a_loop_goes_through_and_everything_is_put_back(tmp_path, place, error):
    mine = objects(Trap(place, error))
    before = as_found(**mine)
    config = PerfConfig(output_dir=str(tmp_path))
    with pytest.raises(type(error)) as raised, measure(**mine, config=config) as perf:
        train(perf, **mine)
    assert raised.value is error
    assert as_found(**mine) == before
    (summary,) = records(tmp_path, Summary)
    assert summary == perf.summary
    assert (summary.steps, summary.failure) == (2, describe(error))
    assert len(steps(tmp_path)) == 2

    with measure(**mine, config=config) as again:
        train(again, **mine)
    assert as_found(**mine) == before
    assert (again.summary.steps, again.summary.failure) == (6, None)


@pytest.mark.parametrize("error", [ValueError("boom"), None], ids=["raising", "ending"])
def test_nested_blocks_put_back_what_each_of_them_changed(tmp_path, error):
    outer, inner = objects(), objects(Trap("model", error) if error else None)
    nothing = as_found(**outer), as_found(**inner)
    with measure(**outer, config=PerfConfig(output_dir=str(tmp_path / "outer"))):
        between = as_found(**outer)
        with (
            pytest.raises(ValueError, match="boom") if error else nullcontext(),
            measure(**inner, config=PerfConfig(output_dir=str(tmp_path / "inner"))) as perf,
        ):
            train(perf, **inner)
        assert as_found(**outer) == between
        assert as_found(**inner)["Optimizer"] == nothing[1]["Optimizer"]
    assert (as_found(**outer), as_found(**inner)) == nothing


def test_a_loop_may_be_left_early_and_taken_up_again(tmp_path):
    mine = objects()
    with measure(**mine, config=PerfConfig(output_dir=str(tmp_path))) as perf:
        for _ in range(2):
            for inputs in perf.loader:
                mine["model"](inputs).mean().backward()
                mine["optimizer"].step()
                break
    assert [(step["step"], step["samples"]) for step in steps(tmp_path)] == [(1, 2), (2, 2)]


def test_an_iterator_that_outlives_the_block_goes_on(tmp_path):
    mine = objects()
    before = as_found(**mine)
    with measure(**mine, config=PerfConfig(output_dir=str(tmp_path))) as perf:
        iterator = iter(perf.loader)
        next(iterator)
    assert len(list(iterator)) == 5
    assert as_found(**mine) == before
    assert perf.summary.failure is None


def test_what_the_user_put_on_top_of_ours_stays(tmp_path):
    mine = objects()
    theirs = []
    with measure(**mine, config=PerfConfig(output_dir=str(tmp_path))):
        ours = mine["optimizer"].zero_grad
        mine["optimizer"].zero_grad = lambda: theirs.append(ours())
        handle = mine["model"].register_forward_pre_hook(lambda *_: theirs.append("called"))
    mine["optimizer"].zero_grad()
    mine["model"](torch.ones(2, 4))
    handle.remove()
    assert theirs == [None, "called"]


def unmeasured():
    mine = objects()
    perf = SimpleNamespace(
        loader=mine["loader"], evaluation=nullcontext, checkpoint=nullcontext, state=dict, row=dict, summary=None
    )
    return outcome(train(perf, **mine), mine)


def outcome(losses, mine):
    return losses, [parameter.tolist() for parameter in mine["model"].parameters()], torch.rand(1).item()


SEVERAL = [part for part in parts(OFTEN) if not part.startswith("integrations.")]


@pytest.mark.parametrize(
    ("part", "first"), [*sampled(SEVERAL, [0, 2]), *sampled(parts(TWICE), [1, 0]), *sampled(parts(ONCE), [0])]
)
def test_a_fault_of_ours_is_told_once_and_changes_nothing(tmp_path, monkeypatch, caplog, part, first):
    expected = unmeasured()
    mine = objects()
    before = as_found(**mine)
    with monkeypatch.context() as patch:
        fault = Fault(patch, part, first)
        with measure(**mine, config=PerfConfig(output_dir=str(tmp_path))) as perf:
            losses = train(perf, **mine)
        perf.row()
        perf.state()
    assert outcome(losses, mine) == expected
    assert as_found(**mine) == before
    assert fault.happened
    assert ["a bug of ours" in text for text in warnings(caplog, EVALUATES_ALWAYS)] == [True]


@pytest.mark.parametrize("after", [1, 3])
def test_a_fault_is_the_reason_in_the_summary(tmp_path, monkeypatch, after):
    mine = objects()
    Fault(monkeypatch, "kernel.batches.reader.BatchReader.read", after)
    with measure(**mine, config=PerfConfig(output_dir=str(tmp_path))) as perf:
        train(perf, **mine)
    (summary,) = records(tmp_path, Summary)
    assert summary == perf.summary
    assert (summary.steps, summary.failure) == (after, "RuntimeError: a bug of ours")


UNFINISHED = """
import torch
from perf_callbacks.loop import measure
model = torch.nn.Linear(4, 1)
perf = measure(model=model, optimizer=torch.optim.SGD(model.parameters()), loader=[torch.ones(2, 4)]).__enter__()
for inputs in perf.loader:
    model(inputs).mean().backward()
    perf._optimizer.step()
"""


def test_a_block_that_is_never_left_is_closed_with_the_interpreter(tmp_path):
    subprocess.run([sys.executable, "-c", UNFINISHED], cwd=tmp_path, timeout=280, check=True)
    assert len(steps(tmp_path)) == 1
    (summary,) = records(tmp_path, Summary)
    assert summary.steps == 1
