"""A short loop with Accelerate, and the places in it."""

import gc

import torch
from accelerate import Accelerator
from accelerated import Tracker
from counted import bits
from faults import as_found
from slow_backward import SlowBackward
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from places import Place, collect_garbage, nothing


class Rows(Dataset):
    def __init__(self, at, place, rows):
        self.at, self.place, self.rows = at, place, rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        self.at(self.place)
        return torch.rand(4, generator=torch.Generator().manual_seed(index))


class Model(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.linear, self.dropout, self.at = nn.Linear(4, 4), nn.Dropout(), at

    def forward(self, inputs):
        self.at("the model" if self.training else "the model in evaluation")
        if self.training:
            collect_garbage(lambda: self.at("a collection"))
        return SlowBackward.apply(self.dropout(self.linear(inputs)), lambda _: self.at("a gradient"))


class Optimizer(torch.optim.SGD):
    at = staticmethod(nothing)

    def step(self, closure=None):
        self.at("the optimizer")
        return super().step(closure)

    def zero_grad(self, set_to_none=True):  # noqa: FBT002 as in torch
        self.at("zero_grad")
        super().zero_grad(set_to_none)


class Logger(Tracker):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def log(self, values, step=None, **more):
        self.at("a tracker")
        super().log(values, step, **more)


class Counter:
    """An object of the user's in the checkpoint."""

    def __init__(self, at):
        self.at, self.number = at, 0

    def state_dict(self):
        self.at("a checkpoint")
        return {"number": self.number}

    def load_state_dict(self, state):
        self.at("loading")
        self.number = state["number"]


class Training:
    """A loop of epochs with two steps each; it evaluates, saves and loads after each."""

    PLACES = {  # noqa: RUF012 a table
        "the dataset": Place("data"),
        "the collator": Place("data"),
        "the model": Place("forward"),
        "the loss": Place("forward"),
        "a gradient": Place("backward"),
        "between micro-batches": Place("other"),
        "before clipping": Place("optimizer"),
        "the optimizer": Place("optimizer"),
        "the scheduler": Place("optimizer"),
        "zero_grad": Place("optimizer"),
        "a tracker": Place("other"),
        "the user's code": Place("other"),
        "a collection": Place("gc"),
        "the dataset in evaluation": Place("evaluation"),
        "the model in evaluation": Place("evaluation"),
        "a metric": Place("evaluation"),
        "a checkpoint": Place("checkpoint"),
        "loading": Place(None),
    }
    WAYS = {way: {"way": way} for way in ("with", "close", "another attach")}  # noqa: RUF012

    def __init__(
        self, directory, place=None, act=nothing, *, way="with", steps=6, evaluate=True, save=True, load=True,
        measured=True, prepared="before", **config,
    ):  # fmt: skip
        torch.manual_seed(0)
        self.directory, self.place, self.act, self.way, self.steps = directory, place, act, way, steps
        self.evaluate, self.save, self.load, self.measured = evaluate, save, load and save, measured
        self.config, self.step, self.losses, self.perf = PerfConfig(**config), 1, [], None
        self.accelerator = Accelerator(cpu=True, project_dir=str(directory), gradient_accumulation_steps=2)
        self.accelerator.trackers = [Logger(self.at)]
        self.accelerator.register_for_checkpointing(Counter(self.at))
        self.prepared = []
        if prepared == "before":
            self.prepare()

    def at(self, place):
        if place == self.place:
            self.act()

    def rate(self, step):
        if step:  # the first call is in the constructor
            self.at("the scheduler")
        return 0.9**step

    def prepare(self):
        model = Model(self.at)
        optimizer = Optimizer(model.parameters(), lr=0.1)
        optimizer.at = self.at
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)

        def collate(rows):
            self.at("the collator")
            return torch.stack(rows)

        training = DataLoader(Rows(self.at, "the dataset", 8), batch_size=2, shuffle=True, collate_fn=collate)
        validation = DataLoader(Rows(self.at, "the dataset in evaluation", 4), batch_size=2)
        self.prepared = self.accelerator.prepare(model, optimizer, scheduler, training, validation)

    def run(self):
        self.before = self.world()
        if not self.measured:
            self.train()
            return
        self.perf = attach(self.accelerator, self.config)
        if self.way == "with":
            with self.perf:
                self.train()
            return
        raised = None
        try:
            self.train()
        except BaseException as error:  # noqa: BLE001 it is raised again, after the error has been left
            raised = error
        if self.way == "close":
            self.perf.close()
        elif self.way == "another attach":
            attach(self.accelerator).close("enough")
        else:
            self.accelerator.end_training()
        if raised is not None:
            raise raised

    def again(self):
        """The same objects, once without measuring, and then in a measured loop."""
        self.perf.close()
        self.train()
        assert self.world() == self.before
        self.way, self.losses = "with", []
        return self

    def train(self):
        self.step = 1
        if not self.prepared:
            self.prepare()
        model, _optimizer, _scheduler, training, validation = self.prepared
        accelerator, epoch = self.accelerator, 0
        while self.step <= self.steps:
            epoch += 1
            model.train()
            # every second epoch lacks its first batch, and ends with a step of one micro-batch
            for inputs in training if epoch % 2 else accelerator.skip_first_batches(training, 1):
                with accelerator.accumulate(model):
                    self.train_batch(inputs)
                if accelerator.sync_gradients:
                    accelerator.log({"loss": self.losses[-1]})
                    self.at("the user's code")
            if self.evaluate:
                model.eval()
                for inputs in validation:
                    with torch.no_grad():
                        self.losses.append(accelerator.gather_for_metrics(model(inputs)).sum().item())
                    self.at("a metric")
            if self.save:
                accelerator.save_state(str(self.directory / "checkpoint"))
            if self.load:
                accelerator.load_state(str(self.directory / "checkpoint"))

    def train_batch(self, inputs):
        accelerator, (model, optimizer, scheduler, *_) = self.accelerator, self.prepared
        loss = model(inputs).square().mean()
        self.at("the loss")
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            self.at("before clipping")
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        else:
            self.at("between micro-batches")
        optimizer.step()
        self.step += accelerator.sync_gradients
        scheduler.step()
        optimizer.zero_grad()
        self.losses.append(loss.item())
        gc.collect(0)

    def world(self):
        """Functions and hooks on the objects of the loop, and the state of the process."""
        if not self.prepared:
            return as_found(self.accelerator), {"DataLoaderAdapter"}, False
        if self.measured and self.before and isinstance(self.before, tuple):
            kinds = {type(loader).__mro__[1].__name__ for loader in self.prepared[3:]}
            return as_found(self.accelerator), kinds, bool(self.prepared[0]._forward_pre_hooks)
        return as_found(self.accelerator, *self.prepared, self.prepared[1].optimizer)

    before = None

    @property
    def summary(self):
        return self.perf.summary

    @property
    def outcome(self):
        """Losses, weights and logged lines, to the last bit, and the next random number."""
        logged = [values["loss"] for _, values in self.accelerator.trackers[0].rows if "loss" in values]
        return self.losses, bits(self.prepared[0]), logged, torch.rand(1).item()
