"""Where time that is spent in known places of a loop with Accelerate turns up, on a clock that only moves there."""

import gc

import pytest
import torch
from accelerated import an_accelerator
from slow_backward import SlowBackward
from tiny import records, steps as steps_of
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.records.fit_records import Span

pytestmark = pytest.mark.usefixtures("accelerate_state")

STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
SLEEP, LATE = 0.5, 4
PER_EPOCH = 3


class Sleeper:
    """Sleeps at one place, once in every step from the fourth on."""

    def __init__(self, place, clock):
        self.place, self.clock, self.step, self.slept = place, clock, 1, set()

    def __call__(self, place):
        if place == self.place and self.step >= LATE and self.step not in self.slept:
            self.slept.add(self.step)
            self.clock.sleep(SLEEP)


class Rows(Dataset):
    def __init__(self, sleep, place, count):
        self.sleep, self.place, self.count = sleep, place, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.sleep(self.place)
        return torch.ones(4)


class Model(nn.Module):
    def __init__(self, sleep):
        super().__init__()
        self.linear, self.sleep = nn.Linear(4, 1), sleep

    def forward(self, inputs):
        self.sleep("model" if self.training else "model in evaluation")
        if self.training and self.sleep.place == "collection":
            collect(self.sleep)
        return SlowBackward.apply(self.linear(inputs), self.sleep)


def collect(sleep):
    def linger(phase, _info):
        if phase == "start":
            sleep("collection")

    gc.callbacks.append(linger)
    gc.collect(0)
    gc.callbacks.remove(linger)


class Optimizer(torch.optim.SGD):
    sleep = staticmethod(lambda _place: None)

    def step(self, closure=None):
        self.sleep("step")
        return super().step(closure)

    def zero_grad(self, set_to_none=True):  # noqa: FBT002 as in torch
        self.sleep("zero_grad")
        super().zero_grad(set_to_none)


class Tracker:
    name = "slow"

    def __init__(self, sleep):
        self.sleep = sleep

    def log(self, values, step=None, **_):
        self.sleep("tracker")

    def finish(self):
        pass


class Saved:
    """Something of the user's that goes along with checkpoints."""

    def __init__(self, sleep):
        self.sleep = sleep

    def state_dict(self):
        self.sleep("checkpoint")
        return {}

    def load_state_dict(self, state):
        pass


@pytest.fixture
def train(tmp_path, clock):
    """Four epochs of three steps of two micro-batches each, with a sleep in one place."""

    def run(place, *, evaluating=False, saving=False):
        sleep = Sleeper(place, clock)
        accelerator = an_accelerator(tmp_path, gradient_accumulation_steps=2)
        accelerator.trackers = [Tracker(sleep)]
        accelerator.register_for_checkpointing(Saved(sleep))
        with attach(accelerator, PerfConfig(flops="off")):
            loop(accelerator, sleep, evaluating=evaluating, saving=saving, directory=tmp_path / "checkpoint")
        return sleep, {step["step"]: step for step in steps_of(tmp_path)}

    return run


def loop(accelerator, sleep, *, evaluating, saving, directory):
    model = Model(sleep)
    optimizer = Optimizer(model.parameters(), lr=0.1)
    optimizer.sleep = sleep
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: sleep("scheduler") or 1.0)

    def collate(rows):
        sleep("collate")
        return torch.stack(rows)

    training = DataLoader(Rows(sleep, "dataset", 4 * PER_EPOCH), batch_size=2, collate_fn=collate)
    validation = DataLoader(Rows(sleep, "dataset in evaluation", 4), batch_size=2)
    mine = accelerator.prepare(model, optimizer, scheduler, training, validation)
    model, optimizer, scheduler, training, validation = mine
    for _epoch in range(4):
        model.train()
        for inputs in training:
            with accelerator.accumulate(model):
                outputs = model(inputs)
                sleep("loss")
                accelerator.backward(outputs.mean())
                if not accelerator.sync_gradients:
                    sleep("between micro-batches")
                else:
                    sleep("before clipping")
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if accelerator.sync_gradients:
                    sleep.step += 1
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                accelerator.log({"loss": 1.0})
                sleep("user code")
        if evaluating:
            model.eval()
            for inputs in validation:
                with torch.no_grad():
                    model(inputs)
                sleep("metric")
        if saving:
            accelerator.save_state(str(directory))


@pytest.mark.parametrize(
    ("place", "stage"),
    [
        ("dataset", "data"),
        ("collate", "data"),
        ("model", "forward"),
        ("loss", "forward"),
        ("backward", "backward"),
        ("between micro-batches", "other"),
        ("before clipping", "optimizer"),
        ("step", "optimizer"),
        ("scheduler", "optimizer"),
        ("zero_grad", "optimizer"),
        ("tracker", "other"),
        ("user code", "other"),
        ("collection", "gc"),
    ],
)
def test_time_is_in_its_stage_and_in_no_other(train, place, stage):
    sleep, steps = train(place)
    assert {*sleep.slept} >= {5, 6, 8, 9, 11, 12}  # a loader that looks ahead has nothing to fetch in the last step
    for name in (*STAGES, "step"):
        expected = {step: SLEEP if step in sleep.slept and name in {stage, "step"} else 0.0 for step in steps}
        assert {step: row[f"{name}_time"] for step, row in steps.items()} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("dataset in evaluation", "evaluation"),
        ("model in evaluation", "evaluation"),
        ("metric", "evaluation"),
        ("checkpoint", "checkpoint"),
    ],
)
def test_evaluations_and_checkpoints_are_in_no_step_and_the_steps_they_fall_in_are_in_no_row(train, place, kind):
    sleep, steps = train(place, evaluating=kind == "evaluation", saving=kind == "checkpoint")
    assert sleep.slept == {4, 7, 10, 13}
    assert {row["step_time"] for row in steps.values()} == {0.0}
    assert {number: row["excluded"] for number, row in steps.items() if row["excluded"]} == {
        1: "first",
        **dict.fromkeys((4, 7, 10), kind),
    }


@pytest.mark.parametrize(
    ("place", "kind"), [("dataset in evaluation", "evaluation"), ("metric", "evaluation"), ("checkpoint", "checkpoint")]
)
def test_a_checkpoint_after_an_evaluation_is_told_from_it(train, tmp_path, place, kind):
    train(place, evaluating=True, saving=True)
    spans = [(span.kind, span.step, span.seconds) for span in records(tmp_path, Span)]
    assert spans == [
        (one, step, SLEEP if one == kind else 0.0) for step in (3, 6, 9, 12) for one in ("evaluation", "checkpoint")
    ]
