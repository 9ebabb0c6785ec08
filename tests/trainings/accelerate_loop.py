"""A short loop with Accelerate, and the places in it."""

from contextlib import nullcontext

import torch
from faults import as_found
from torch.utils.data import DataLoader

from perf_callbacks.accelerate import attach
from trainings.accelerated import an_accelerator
from trainings.models import Model, Optimizer, Rows
from trainings.place import Place, in_stages, method
from trainings.training import Training


class Counter:
    """An object of the user's in the checkpoint."""

    def __init__(self, at):
        self.at, self.number = at, 1

    def state_dict(self):
        self.at("a checkpoint")
        return {"number": self.number}

    def load_state_dict(self, state):
        self.at("loading")
        assert state == {"number": self.number}


class AccelerateTraining(Training):
    """Epochs of some steps; it evaluates, saves, and perhaps loads what it saved, after an epoch."""

    PLACES = in_stages(
        data="the dataset, the collator",
        forward="the model, the loss",
        backward="a gradient",
        optimizer="before clipping, the optimizer, the scheduler, zero_grad",
        other="between micro-batches, the user's code",
        gc="a collection",
        evaluation="the dataset in evaluation, the model in evaluation, a metric",
        checkpoint="a checkpoint",
    ) | {"loading": Place(None), "a tracker": Place("other", method("tracker.log"))}
    WAYS = {way: {"way": way} for way in ("with", "close", "another attach")}  # noqa: RUF012 a table
    EVERYWHERE = Training.EVERYWHERE | {"steps": 6, "epoch": 2, "load": True, "custom": True, "prepared": "before"}

    def __init__(
        self, directory, *place, way="with", epoch=None, load=False, custom=False, prepared="inside", **options
    ):
        super().__init__(directory, *place, **options)
        self.way, self.load, self.step = way, load, self.first
        self.epoch = epoch or self.evaluate or self.save or self.steps + 1 - self.first
        """The number of steps in an epoch."""
        self.accelerator = an_accelerator(directory, gradient_accumulation_steps=self.accumulate)
        (self.tracker,) = self.accelerator.trackers
        if custom:
            self.accelerator.register_for_checkpointing(Counter(self.at))
        self.prepared = []
        self.install()
        if prepared == "before":
            self.prepare()

    def rate(self, step):
        if step:  # the first call is in the constructor
            self.at("the scheduler")
        return 0.9**step

    def prepare(self):
        model = Model(self.at)
        optimizer = Optimizer(model, self.at)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)
        rows = Rows(self.at, "the dataset", 4 * self.accumulate * self.epoch)
        training = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=self.collate)
        validation = DataLoader(Rows(self.at, "the dataset in evaluation", 8), batch_size=4)
        self.prepared = self.accelerator.prepare(model, optimizer, scheduler, training, validation)

    @property
    def model(self):
        return self.prepared[0]

    def run(self):
        self.before, raised = self.world(), None
        self.perf = attach(self.accelerator, self.config) if self.measured else None
        if self.perf is None or self.way == "with":
            with self.perf or nullcontext():
                self.train()
            return self
        try:
            self.train()
        except BaseException as error:  # noqa: BLE001 it is raised again, after the error has been left
            raised = error
        if self.way == "end_training":
            self.accelerator.end_training()
        else:
            (self.perf.close if self.way == "close" else attach(self.accelerator).close)()
        if raised is not None:
            raise raised
        return self

    def again(self):
        """The same objects, once without measuring, and then in a measured loop."""
        self.perf.close()
        self.train()
        assert self.world() == self.before
        self.way, self.losses = "with", []
        return self

    def train(self):
        self.step, accelerator, epoch = self.first, self.accelerator, 0
        if not self.prepared:
            self.prepare()
        if self.resume:
            accelerator.load_state(str(self.directory / f"checkpoint-{self.resume}"))
        model, _optimizer, _scheduler, training, validation = self.prepared
        while self.step <= self.steps:
            epoch += 1
            model.train()
            # every second epoch lacks its first batch, and ends with a step of one micro-batch
            lacking = self.accumulate > 1 and epoch % 2 == 0
            for inputs in accelerator.skip_first_batches(training, 1) if lacking else training:
                with accelerator.accumulate(model):
                    self.train_batch(inputs)
                if accelerator.sync_gradients:
                    accelerator.log({"loss": self.losses[-1]})
                    self.at("the user's code")
                    self.after_step(self.step - 1)
            if self.is_time(self.evaluate):
                model.eval()
                for inputs in validation:
                    with torch.no_grad():
                        self.losses.append(accelerator.gather_for_metrics(model(inputs)).sum().item())
                    self.at("a metric")
            if self.is_time(self.save):
                path = str(self.directory / f"checkpoint-{self.step - 1}")
                accelerator.save_state(path)
                if self.load:
                    accelerator.load_state(path)

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

    def world(self):
        """Functions and hooks on the objects of the loop, and the state of the process."""
        if self.prepared and not isinstance(self.before, tuple):
            return as_found(self.accelerator, *self.prepared, self.prepared[1].optimizer)
        kinds = {type(loader).__mro__[1].__name__ for loader in self.prepared[3:]} or {"DataLoaderAdapter"}
        return as_found(self.accelerator), kinds, len(self.model._forward_pre_hooks) if self.prepared else 1

    @property
    def outcome(self):
        """Also the logged losses."""
        logged = [values["loss"] for _, values in self.tracker.rows if "loss" in values]
        return *super().outcome, logged
