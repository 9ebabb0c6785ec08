"""What the trainings of all doors have in common."""

import gc

import torch
from counted import bits

from perf_callbacks import PerfConfig
from trainings.place import collect_garbage, nothing


class Training:
    """A training until step `steps`, each of `accumulate` micro-batches.

    It calls `act` at a place, and `after_step` with the number of each step that is over. It evaluates and saves when
    so many steps are over, and resumes from what it saved after a step. Other options are settings of the callback.
    """

    PLACES = {}  # noqa: RUF012 a table
    WAYS = {"usual": {}}  # noqa: RUF012 a table
    """Ways to train, by name, each a mapping of options."""
    EVERYWHERE = {"accumulate": 2, "evaluate": 2, "save": 2, "steps": 4}  # noqa: RUF012 a table
    """Options with which a training comes to all of its places."""
    perf = before = None

    def __init__(
        self, directory, place=None, act=nothing, *, steps=8, accumulate=1, evaluate=None, save=None, resume=None,
        measured=True, after_step=nothing, **config,
    ):  # fmt: skip
        torch.manual_seed(0)
        self.directory, self.place, self.act, self.after_step = directory, place, act, after_step
        self.steps, self.accumulate, self.evaluate, self.save = steps, accumulate, evaluate, save
        self.resume, self.measured, self.config = resume, measured, PerfConfig(**config)
        self.first = 1 + (resume or 0)
        """The number of the first step; `step` is that of the step that goes on."""
        self.losses = []

    def install(self):
        """Have a framework call `act` at the place, once its objects are made."""
        if self.place and self.PLACES[self.place].install:
            self.PLACES[self.place].install(self, self.act)

    def at(self, place):
        if place == self.place:
            collect_garbage(self.act) if place == "a collection" else self.act()

    def collate(self, rows):
        self.at("the collator")
        return torch.stack(rows).requires_grad_()  # as reentrant checkpointing needs

    def is_time(self, steps):
        """Whether so many steps are over again."""
        return bool(steps) and (self.step - 1) % steps == 0

    def again(self):
        """Another training with what this one was measured with."""
        return self

    @property
    def summary(self):
        return self.perf.summary

    @property
    def weights(self):
        return [weight.detach().clone() for weight in self.model.parameters()]

    @property
    def outcome(self):
        """Losses and weights, to the last bit, and the next random number."""
        return self.losses, bits(self.model), torch.rand(1).item()


def collect(_step):
    """Collect garbage after a step, so that each fit has collections."""
    gc.collect(0)
