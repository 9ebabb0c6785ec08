"""Errors, evaluations, checkpoints and other fits in a counted step: the count stays right, and nothing of it stays."""

import signal
from types import SimpleNamespace

import pytest
import torch
from counted import bits, counts, excluded, ids, known, left_behind, loop, truth
from torch import nn
from trainings import lightning_kit, models
from transformers import TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

PLACES = ("forward", "backward", "optimizer", "hook")


@pytest.fixture(autouse=True)
def _nothing_stays_behind():
    """Lightning ignores interrupts after the first."""
    handler, before = signal.getsignal(signal.SIGINT), left_behind()
    yield
    signal.signal(signal.SIGINT, handler)
    after = left_behind()
    assert [one for one in after.pop("filters") if "global hooks" in str(one)] == []
    before.pop("filters")  # Lightning adds its own
    assert after == before
    assert after["modes"] == []
    assert after["stance"] == "default"


class Trap(nn.Module):
    """A layer that raises in one step, wherever it is told to."""

    def __init__(self, place=None, error=None, at=2):
        super().__init__()
        self.place, self.error, self.at = place, error, at
        self.layer = nn.Linear(4, 4)
        self.layer.register_forward_hook(lambda *_: self.spring("hook"))
        self.calls = 0

    def spring(self, place):
        if place == self.place and self.calls == self.at:
            raise self.error

    def forward(self, x):
        self.calls += 1
        self.spring("forward")
        y = self.layer(x)
        if y.requires_grad:
            y.register_hook(lambda _: self.spring("backward"))
        return y


class Optimizer(torch.optim.SGD):
    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.01)
        self.trap = model

    def step(self, closure=None):
        loss = super().step(closure)
        self.trap.spring("optimizer")
        return loss


def rows(number=6):
    return [torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(number)]


def uneven():
    """Another number of rows each time."""
    return [batch[:1].expand(number, -1) for number, batch in enumerate(rows(9), start=1)]


def surviving(directory, flops, place, batches):
    """A loop that goes on after an error."""
    torch.manual_seed(0)
    model = Trap(place, RuntimeError("out of memory"))
    optimizer = Optimizer(model)
    caught, losses = [], []
    config = PerfConfig(output_dir=str(directory), flops=flops)
    with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
        for batch in perf.loader:
            try:
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            except RuntimeError as error:
                caught.append(str(error))
            optimizer.zero_grad()
    return SimpleNamespace(outcome=(losses, caught, bits(model)), model=model)


@pytest.mark.parametrize("batches", [rows(), uneven()], ids=["even", "uneven"])
@pytest.mark.parametrize("place", PLACES)
def test_a_loop_that_survives_an_error_is_not_miscounted(tmp_path, place, batches):
    counted, off = [surviving(tmp_path / flops, flops, place, batches) for flops in ("count", "off")]
    assert counted.outcome == off.outcome
    assert counted.outcome[1] == ["out of memory"]
    true = [truth(Trap(), batch) for batch in batches[2:]]
    last = known(tmp_path / "count")[2:]
    trained = true[-len(last) :]
    assert [flops for flops, right in zip(last, trained, strict=True) if flops not in {None, right}] == []
    assert last[-1] == trained[-1], "it is counted sooner or later"


def fit(directory, one, flops="count", **options):
    ours = lightning_kit.tree().PerfCallback(PerfConfig(flops=flops))
    trainer = lightning_kit.trainer(directory, ours, **options)
    trainer.fit(one, lightning_kit.loader(32))
    return trainer


@pytest.mark.parametrize("skip", [(2,), (2, 3), (3, 5)])
def test_batches_that_are_skipped_leave_nothing_behind(tmp_path, skip):
    fits = {}
    for flops in ("count", "off"):
        one = lightning_kit.tree().Automatic(skip=skip)
        trainer = fit(tmp_path / flops, one, flops, max_steps=6)
        fits[flops] = trainer.global_step, one.batches, bits(one)
    assert fits["count"] == fits["off"]
    true = truth(nn.Sequential(nn.Linear(4, 4)), torch.ones(4, 4))
    assert [record.model_flops for record in counts(tmp_path / "count")] == [true]
    assert set(known(tmp_path / "count")) <= {None, true}


def test_an_evaluation_of_another_shape_in_a_loop_is_not_counted(tmp_path):
    model = models.llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    config = PerfConfig(output_dir=str(tmp_path))
    with measure(model=model, optimizer=optimizer, loader=[ids(2, 8)] * 5, config=config) as perf:
        for batch in perf.loader:
            with perf.evaluation():
                model(**ids(3, 11)).loss.backward()
            optimizer.zero_grad()
            model(**batch).loss.backward()
            with perf.evaluation(), perf.checkpoint(), torch.no_grad():
                model(**ids(5, 7))
            optimizer.step()
            model.eval()
            with torch.no_grad():
                model(**ids(1, 20))
            model.train()
    true = truth(models.llama(), ids(2, 8))
    assert [record.model_flops for record in counts(tmp_path)] == [true]
    assert known(tmp_path)[1:] == [true] * 4


class Within(TrainerCallback):
    """Trains another model in the midst of a step."""

    def __init__(self, directory, step):
        self.directory, self.step = directory, step

    def on_pre_optimizer_step(self, args, state, control, **_):
        if state.global_step == self.step:
            loop(self.directory, nn.Linear(4, 4), rows())


@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_fit_inside_a_fit_counts_for_itself(tmp_path, step):
    arguments = models.training_arguments(tmp_path / "outer")
    within = Within(tmp_path / "inner", step)
    trainer = models.trainer(arguments, PerfCallback(), within, train_dataset=models.Tokens(32))
    trainer.train()
    inner = truth(nn.Linear(4, 4), rows()[0])
    assert known(tmp_path / "inner") == [inner] * 6
    outer = truth(models.llama(), ids(4, 16))
    extra = 6 * inner if step == 1 else 0  # it is part of the step that was counted
    (record,) = counts(tmp_path / "outer")
    assert record.model_flops in {outer, outer + extra}
    assert [flops for flops in known(tmp_path / "outer") if flops not in {None, outer, outer + extra}] == []
    assert excluded(tmp_path / "outer") == [2]


def test_a_mode_entered_in_the_counted_step_stays_the_users(tmp_path):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Theirs(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    theirs, model = Theirs(), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with measure(model=model, optimizer=optimizer, loader=rows(), config=PerfConfig(output_dir=str(tmp_path))) as perf:
        for number, batch in enumerate(perf.loader, start=1):
            if number == 2:
                theirs.__enter__()
            if number == 4:
                calls = theirs.calls
                theirs.__exit__(None, None, None)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 4:
                assert theirs.calls == calls
    assert calls > 0
    true = truth(nn.Linear(4, 4), rows()[0])
    assert known(tmp_path) == [true] * 6
