"""However a loop with Accelerate ends, and whatever fails in us: training is as it would be, and all is put back."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from accelerate import Accelerator
from accelerated import Tracker, an_accelerator, prepared, rows_of_tokens, train
from counted import bits
from faults import ERRORS, Fault, as_found, faults, warnings
from sampling import sampled
from tiny import records, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.records.fit_records import Summary

pytestmark = pytest.mark.usefixtures("accelerate_state")

PLACES = [
    "dataset",
    "model",
    "gradient",
    "optimizer",
    "scheduler",
    "tracker",
    "evaluation",
    "checkpoint",
    "loading",
    "user code",
]


class Trap:
    """Raises at one place, in the second epoch."""

    def __init__(self, place=None, error=None):
        self.place, self.error, self.epoch = place, error, 0

    def __call__(self, place):
        if place == self.place and self.epoch == 1:
            self.place = None
            raise self.error


class Rows(Dataset):
    def __init__(self, trap):
        self.trap = trap

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.trap("dataset")
        return torch.rand(4, generator=torch.Generator().manual_seed(index))


class Model(nn.Module):
    def __init__(self, trap):
        super().__init__()
        self.linear, self.dropout, self.trap = nn.Linear(4, 4), nn.Dropout(), trap

    def forward(self, inputs):
        self.trap("model" if self.training else "evaluation")
        outputs = self.dropout(self.linear(inputs))
        if outputs.requires_grad:
            outputs.register_hook(lambda _gradient: self.trap("gradient"))
        return outputs.square().mean()


class Optimizer(torch.optim.SGD):
    trap = staticmethod(lambda _place: None)

    def step(self, closure=None):
        self.trap("optimizer")
        return super().step(closure)


class Loud(Tracker):
    def __init__(self, trap):
        super().__init__()
        self.trap = trap

    def log(self, values, step=None, **more):
        self.trap("tracker")
        super().log(values, step, **more)


class Counted:
    """Something of the user's that goes along with checkpoints."""

    def __init__(self, trap):
        self.trap, self.number = trap, 0

    def state_dict(self):
        self.trap("checkpoint")
        return {"number": self.number}

    def load_state_dict(self, state):
        self.trap("loading")
        self.number = state["number"]


class Loop:
    """A loop in which everything happens, and what it consists of."""

    def __init__(self, directory, trap=None):
        torch.manual_seed(0)
        self.directory, self.trap, self.losses = directory, trap or Trap(), []
        self.accelerator = Accelerator(cpu=True, project_dir=str(directory), gradient_accumulation_steps=2)
        self.accelerator.trackers = [Loud(self.trap)]
        self.accelerator.register_for_checkpointing(Counted(self.trap))

    def prepare(self):
        model = Model(self.trap)
        optimizer = Optimizer(model.parameters(), lr=0.1)
        optimizer.trap = self.trap
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.trap("scheduler") or 0.9**step)
        loaders = [DataLoader(Rows(self.trap), batch_size=2, shuffle=shuffle) for shuffle in (True, False)]
        self.prepared = self.accelerator.prepare(model, optimizer, scheduler, *loaders)

    def run(self):
        accelerator = self.accelerator
        model, optimizer, scheduler, training, validation = self.prepared
        for self.trap.epoch in range(3):
            model.train()
            for inputs in accelerator.skip_first_batches(training, 1):
                with accelerator.accumulate(model):
                    loss = model(inputs)
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                self.losses.append(loss.item())
                gc.collect(0)
                accelerator.log({"loss": loss.item()})
            self.trap("user code")
            model.eval()
            with torch.no_grad():
                self.losses += [accelerator.gather_for_metrics(model(inputs)).item() for inputs in validation]
            accelerator.save_state(str(self.directory / "checkpoint"))
            accelerator.load_state(str(self.directory / "checkpoint"))
        return self

    @property
    def outcome(self):
        """What training came to, to the last bit."""
        values = bits(self.prepared[0])
        logged = [values["loss"] for _, values in self.accelerator.trackers[0].rows]
        return self.losses, values, logged, torch.rand(1).item()

    def as_found(self):
        """Functions and hooks on the objects of a loop, and the state of the process."""
        return as_found(self.accelerator, *self.prepared, self.prepared[1].optimizer)


@pytest.mark.parametrize(("place", "way", "error"), sampled(PLACES, ["with", "close", "attach"], ERRORS))
def test_after_an_exception_everything_is_put_back_in_any_way(tmp_path, place, way, error):
    loop = Loop(tmp_path, Trap(place, error))
    loop.prepare()
    before = loop.as_found()
    perf = attach(loop.accelerator)
    assert loop.as_found() != before
    if way == "with":
        with pytest.raises(type(error)), perf:
            loop.run()
    else:
        with pytest.raises(type(error)):
            loop.run()
        if way == "close":
            perf.close()
        else:
            attach(loop.accelerator).close("enough")
    perf.close()
    assert loop.as_found() == before
    summary = records(tmp_path, Summary)[-1]
    assert summary == perf.summary
    reasons = {"with": describe(error), "close": None, "attach": "another attach(accelerator) took over"}
    assert summary.failure == reasons[way]
    loop.run()
    assert loop.as_found() == before


def test_the_end_of_training_puts_everything_back(tmp_path):
    loop = Loop(tmp_path)
    loop.prepare()
    before = loop.as_found()
    perf = attach(loop.accelerator)
    loop.run()
    loop.accelerator.end_training()
    assert loop.as_found() == before
    assert perf.summary.failure is None
    perf.close()


def test_a_second_attach_takes_over(tmp_path):
    accelerator = an_accelerator(tmp_path)
    first = attach(accelerator)
    mine = prepared(accelerator, rows_of_tokens(8))
    train(accelerator, *mine)
    second = attach(accelerator)
    train(accelerator, *mine)
    accelerator.end_training()
    assert (first.summary.steps, first.summary.failure) == (4, "another attach(accelerator) took over")
    assert (second.summary.steps, second.summary.failure) == (4, None)
    assert [len(steps(tmp_path, attempt=number)) for number in (0, 1)] == [4, 4]


def test_of_two_accelerators_with_the_same_optimizer_the_newer_is_measured(tmp_path):
    old = an_accelerator(tmp_path)
    first = attach(old)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for accelerator in (old, an_accelerator(tmp_path)):
        second = attach(accelerator)
        mine, inner, loader = accelerator.prepare(model, optimizer, DataLoader(torch.ones(8, 4), batch_size=2))
        for inputs in loader:
            accelerator.backward(mine(inputs).mean())
            inner.step()
    second.close()
    assert (first.summary, second.summary.steps) == (None, 4)
    assert [len(steps(tmp_path, attempt=number)) for number in (0, 1)] == [4, 4]
    assert not optimizer._optimizer_step_post_hooks


def test_what_is_dropped_without_a_word_is_put_back_when_it_is_collected(tmp_path):
    backward, collector = torch.autograd.backward, list(gc.callbacks)
    accelerator = an_accelerator(tmp_path)
    attach(accelerator)
    model, optimizer, training, _ = prepared(accelerator, rows_of_tokens(8))
    train(accelerator, model, optimizer, training)
    assert torch.autograd.backward is not backward
    gone = weakref.ref(model)
    del accelerator, model, optimizer, training, _
    gc.collect()
    assert gone() is None
    assert torch.autograd.backward is backward
    assert gc.callbacks == collector


def test_an_iterator_that_outlives_the_measuring_goes_on(tmp_path):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator)
    *_, training, _ = prepared(accelerator, rows_of_tokens(8))
    iterator = iter(training)
    next(iterator)
    perf.close()
    assert len(list(iterator)) == 3


def test_what_the_user_put_on_top_of_ours_stays(tmp_path):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator)
    theirs, ours = [], accelerator.log
    accelerator.log = lambda values: theirs.append(ours(values))
    perf.close("enough")
    accelerator.log({"note": 1})
    assert theirs == [None]
    assert accelerator.trackers[0].rows == [(None, {"note": 1})]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    loop = Loop(tmp_path_factory.mktemp("undisturbed"))
    loop.prepare()
    return loop.run().outcome


def test_measuring_changes_no_bit_of_what_training_comes_to(tmp_path, caplog, undisturbed):
    loop = Loop(tmp_path)
    with attach(loop.accelerator) as perf:
        loop.prepare()
        assert loop.run().outcome == undisturbed
    assert warnings(caplog) == []
    assert perf.summary.step == 6


FAULTS = faults(
    often={"integrations.prepared.Prepared": "see", "integrations.accelerate_watch.AcceleratedWatch": "add evaluate"},
    twice={
        "integrations.saved_counters": "write read",
        "accelerate": "_place",
        "integrations.accelerate_watch.AcceleratedWatch": "install _watch_accelerator turn",
    },
    once={
        "accelerate": "install",
        "integrations.accelerate_fits": "AcceleratedWatch",
        "integrations.prepared": "_measured",
    },
    turn=2,
)


@pytest.mark.parametrize(("part", "first"), FAULTS)
def test_a_part_of_ours_that_breaks_costs_one_warning_and_nothing_else(  # noqa: PLR0917 fixtures
    tmp_path, monkeypatch, caplog, undisturbed, part, first
):
    loop = Loop(tmp_path)
    before = as_found(loop.accelerator)
    with monkeypatch.context() as patch:
        fault = Fault(patch, part, first)
        attach(loop.accelerator)
        loop.prepare()
        assert loop.run().outcome == undisturbed
        loop.accelerator.end_training()
    assert as_found(loop.accelerator) == before
    assert {type(loader).__mro__[1].__name__ for loader in loop.prepared[3:]} == {"DataLoaderAdapter"}
    assert not loop.prepared[0]._forward_pre_hooks
    assert fault.happened
    assert ["a bug of ours" in text for text in warnings(caplog)] == [True]


UNFINISHED = """
import torch
from accelerate import Accelerator
from perf_callbacks.accelerate import attach
accelerator = Accelerator(cpu=True)
attach(accelerator)
model = torch.nn.Linear(4, 1)
loader = torch.utils.data.DataLoader(torch.ones(2, 4), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
for inputs in loader:
    accelerator.backward(model(inputs).mean())
    optimizer.step()
"""


def test_a_loop_that_says_nothing_of_its_end_is_closed_with_the_interpreter(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", UNFINISHED], cwd=tmp_path, timeout=280, check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    (summary,) = records(tmp_path, Summary)
    assert (summary.steps, summary.failure) == (1, "the interpreter exited")
