"""A short plain loop in a `measure` block, and the places in it."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from counted import bits
from faults import as_found
from slow_backward import SlowBackward
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from places import Place, collect_garbage, nothing


class Model(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.linear, self.dropout, self.at = nn.Linear(4, 1), nn.Dropout(), at
        self.register_forward_pre_hook(lambda *_: None)

    def forward(self, inputs):
        self.at("the model" if self.training else "the model in evaluation")
        if self.training:
            collect_garbage(lambda: self.at("a collection"))
        return SlowBackward.apply(self.dropout(self.linear(inputs)), lambda _: self.at("a gradient"))


class Optimizer(torch.optim.Optimizer):
    def __init__(self, model, at):
        super().__init__(model.parameters(), {})
        self.at = at
        self.register_step_post_hook(lambda *_: None)

    @torch.no_grad()
    def step(self, closure=None):
        self.at("the optimizer")
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)

    def zero_grad(self, set_to_none=True):  # noqa: FBT002 as in torch
        self.at("zero_grad")
        super().zero_grad(set_to_none)


class Rows(Dataset):
    def __init__(self, at, rows):
        self.at, self.rows = at, rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        self.at("the dataset")
        return torch.rand(4, generator=torch.Generator().manual_seed(index))


class Batches:
    """An iterable of batches, which is no `DataLoader`."""

    def __init__(self, at, batches):
        self.at, self.batches = at, batches

    def __iter__(self):
        for seed in range(self.batches):
            self.at("an iterable")
            yield torch.rand(2, 4, generator=torch.Generator().manual_seed(seed))


class Training:
    """A loop of some steps with two micro-batches each; it evaluates and saves after every second step."""

    PLACES = {  # noqa: RUF012 a table
        "the dataset": Place("data"),
        "the collator": Place("data"),
        "an iterable": Place("data"),
        "the model": Place("forward"),
        "the loss": Place("forward"),
        "a gradient": Place("backward"),
        "between micro-batches": Place("other"),
        "clipping": Place("optimizer"),
        "the optimizer": Place("optimizer"),
        "the scheduler": Place("other"),
        "zero_grad": Place("optimizer"),
        "the user's code": Place("other"),
        "a collection": Place("gc"),
        "an evaluation": Place("evaluation"),
        "the model in evaluation": Place("evaluation"),
        "inference mode": Place("evaluation"),
        "a checkpoint in an evaluation": Place("evaluation"),
        "a checkpoint": Place("checkpoint"),
    }
    WAYS = {"with": {}}  # noqa: RUF012

    def __init__(
        self, directory, place=None, act=nothing, *, steps=6, evaluate=True, save=True, measured=True, model=Model,
        call=lambda model, inputs: model(inputs), after_step=nothing, **config,
    ):  # fmt: skip
        torch.manual_seed(0)
        self.place, self.act, self.steps, self.step = place, act, steps, 1
        self.evaluate, self.save, self.measured = evaluate, save, measured
        self.config, self.losses, self.perf = PerfConfig(output_dir=str(directory), **config), [], None
        self.call, self.after_step, model = call, after_step, model(self.at)
        loader = DataLoader(Rows(self.at, 4 * steps), batch_size=2, collate_fn=self.collate)
        loader = Batches(self.at, 2 * steps) if place == "an iterable" else loader
        self.objects = {"model": model, "optimizer": Optimizer(model, self.at), "loader": loader}

    def at(self, place):
        if place == self.place:
            self.act()

    def collate(self, rows):
        self.at("the collator")
        return torch.stack(rows).requires_grad_()  # as reentrant checkpointing needs

    def run(self):
        self.step, self.losses, self.before = 1, [], self.world()
        if not self.measured:
            usual = {"evaluation": nullcontext, "checkpoint": nullcontext, "state": dict, "row": dict, "summary": None}
            self.train(SimpleNamespace(loader=self.objects["loader"], **usual))
            return
        with measure(**self.objects, config=self.config) as self.perf:
            self.train(self.perf)
        self.perf.row()
        self.perf.state()

    def again(self):
        """The same objects in another block."""
        return self

    def train(self, perf):
        model, optimizer = self.objects["model"], self.objects["optimizer"]
        for index, inputs in enumerate(perf.loader):
            outputs = self.call(model, inputs)
            self.at("the loss")
            outputs.square().mean().backward()
            self.losses.append(outputs.mean().item())
            if index % 2 == 0:
                self.at("between micro-batches")
                continue
            self.at("clipping")
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            self.step += 1
            self.at("the scheduler")
            optimizer.zero_grad()
            self.at("the user's code")
            self.after_step(perf, model)
            perf.row()
            _ = perf.summary
            if index % 4 == 3:
                self.step_aside(perf, inputs)

    def step_aside(self, perf, inputs):
        """Evaluate in three ways and save, after every second step."""
        model = self.objects["model"]
        if self.evaluate:
            with perf.evaluation():
                self.at("an evaluation")
                with perf.checkpoint():
                    self.at("a checkpoint in an evaluation")
            for context in (torch.no_grad, torch.inference_mode):
                model.eval()
                with context():
                    self.losses.append(model(inputs).sum().item())
                    if torch.is_inference_mode_enabled():
                        self.at("inference mode")
                model.train()
        if self.save:
            with perf.checkpoint():
                self.at("a checkpoint")
                perf.state()

    def world(self):
        """Everything on the objects of the loop, and the state of the process."""
        owners = (*self.objects.values(),)
        return as_found(*owners), [{name for name in vars(owner)} for owner in owners]

    @property
    def summary(self):
        return self.perf.summary

    @property
    def outcome(self):
        """Losses and weights, to the last bit, and the next random number."""
        return self.losses, bits(self.objects["model"]), torch.rand(1).item()
