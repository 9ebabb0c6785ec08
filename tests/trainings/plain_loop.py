"""A short plain loop in a `measure` block, and the places in it."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from faults import as_found
from torch import nn
from torch.utils.data import DataLoader

from perf_callbacks.loop import measure
from trainings.models import Batches, Model, Optimizer, Rows
from trainings.place import in_stages
from trainings.training import Training

UNMEASURED = {"evaluation": nullcontext, "checkpoint": nullcontext, "state": dict, "row": dict, "summary": None}


class LoopTraining(Training):
    """`model` is made with the function that its places call, and called by `call`."""

    PLACES = in_stages(
        data="the dataset, the collator, an iterable",
        forward="the model, the loss",
        backward="a gradient",
        optimizer="clipping, the optimizer, zero_grad",
        other="between micro-batches, the scheduler, the user's code",
        gc="a collection",
        evaluation="an evaluation, the model in evaluation, inference mode, a checkpoint in an evaluation",
        checkpoint="a checkpoint",
    )
    EVERYWHERE = Training.EVERYWHERE | {"steps": 6}

    def __init__(self, directory, *place, model=Model, call=lambda model, inputs: model(inputs), **options):
        super().__init__(directory, *place, output_dir=str(directory), **options)
        self.call, self.model, self.step = call, model(self.at), self.first
        batches = self.accumulate * (self.steps + 1 - self.first)
        loader = DataLoader(Rows(self.at, "the dataset", 4 * batches), batch_size=4, collate_fn=self.collate)
        if self.place == "an iterable":
            loader = Batches(self.at, batches)
        self.objects = {"model": self.model, "optimizer": Optimizer(self.model, self.at), "loader": loader}

    def run(self):
        self.step, self.losses, self.before, saved = self.first, [], self.world(), {}
        if self.resume:
            saved = torch.load(self.directory / f"checkpoint-{self.resume}.pt", weights_only=True)
            self.model.load_state_dict(saved["model"])
        if not self.measured:
            self.train(SimpleNamespace(loader=self.objects["loader"], **UNMEASURED))
            return self
        with measure(**self.objects, config=self.config, resume=saved.get("perf")) as self.perf:
            self.train(self.perf)
        self.perf.row()
        self.perf.state()
        return self

    def train(self, perf):
        optimizer = self.objects["optimizer"]
        for number, inputs in enumerate(perf.loader, 1):
            outputs = self.call(self.model, inputs)
            self.at("the loss")
            loss = outputs.square().mean()
            loss.backward()
            self.losses.append(loss.item())
            if number % self.accumulate:
                self.at("between micro-batches")
                continue
            self.at("clipping")
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            self.step += 1
            self.at("the scheduler")
            optimizer.zero_grad()
            self.at("the user's code")
            self.after_step(self.step - 1)
            perf.row()
            _ = perf.summary
            self.step_aside(perf, inputs)

    def step_aside(self, perf, inputs):
        """Evaluate in three ways, and save."""
        if self.is_time(self.evaluate):
            with perf.evaluation():
                self.at("an evaluation")
                with perf.checkpoint():
                    self.at("a checkpoint in an evaluation")
            for context in (torch.no_grad, torch.inference_mode):
                self.model.eval()
                with context():
                    self.losses.append(self.model(inputs).sum().item())
                    if torch.is_inference_mode_enabled():
                        self.at("inference mode")
                self.model.train()
        if self.is_time(self.save):
            with perf.checkpoint():
                self.at("a checkpoint")
                saved = {"model": self.model.state_dict(), "perf": {**perf.state()}}
                self.directory.mkdir(exist_ok=True)
                torch.save(saved, self.directory / f"checkpoint-{self.step - 1}.pt")

    def world(self):
        """Everything on the objects of the loop, and the state of the process."""
        owners = (*self.objects.values(),)
        return as_found(*owners), [{name for name in vars(owner)} for owner in owners]
