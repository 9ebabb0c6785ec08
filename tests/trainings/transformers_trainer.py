"""A short training with the `Trainer` of transformers, and the places in its loop."""

import torch
from faults import as_found
from transformers import Trainer, TrainerCallback

from perf_callbacks.transformers import PerfCallback
from trainings.models import Tokens, trainer, training_arguments
from trainings.place import Place, calling, collecting, hook, nothing, override
from trainings.training import Training

SCHEDULER_IS_WATCHED = hasattr(Trainer, "_run_epoch")
"""Transformers 4 calls the scheduler where no hook hears of an exception, and saves what is put on a scheduler."""
LOSSES = {"step", "loss", "grad_norm", "learning_rate", "eval_loss", "train_loss"}


def subclass(name, stage):
    """A method of a subclass of `Trainer`."""

    def install(training, act):
        kind = type(training.trainer)
        training.trainer.__class__ = type("Own", (kind,), {name: calling(act, getattr(kind, name))})

    return Place(stage, install)


def method(name, stage, owner=lambda training: training.trainer):
    """A method, replaced on an object."""
    return Place(stage, override(name, owner))


def item(training, act):
    rows = training.trainer.train_dataset
    rows.__class__ = type("Slow", (Tokens,), {"__getitem__": calling(act, Tokens.__getitem__)})


def loss(training, act):
    def compute(outputs, labels, num_items_in_batch=None):
        act()
        return outputs["logits"].float().mean() ** 2

    training.trainer.compute_loss_func = compute


def optimizer(training, act):
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            act()
            return super().step(closure)

    training.trainer.optimizer = Own(training.trainer.model.parameters(), lr=0.01)


def scheduler(training, act):
    training.trainer.create_optimizer()

    def rate(step):
        if step:  # the first call is in the constructor
            act()
        return 1.0

    training.trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(training.trainer.optimizer, rate)


def asking(ask):
    """A callback that asks for an evaluation at once, in which the model is slow."""

    def install(training, act):
        def on_step_end(_args, state, _control, **_):
            if state.global_step % 2 == 0:
                ask(training.trainer)

        training.other.on_step_end = on_step_end
        training.trainer.model.register_forward_pre_hook(lambda module, _: None if module.training else act())

    return Place("evaluation", install)


def model_of(training):
    return training.trainer.model


def accelerator_of(training):
    return training.trainer.accelerator


class Other(TrainerCallback):
    """Another callback, with the hook that a place needs."""


class Told(TrainerCallback):
    """Sees the world right before a fit begins, and hears of each step that is over."""

    def __init__(self, training):
        self.training = training

    def on_train_begin(self, args, state, control, **_):
        self.training.before = self.training.world()

    def on_log(self, args, state, control, **_):
        if state.global_step and "loss" in state.log_history[-1]:
            self.training.after_step(state.global_step)


class TransformersTraining(Training):
    """`order` is that of another callback and ours; `arguments` are those of the trainer."""

    PLACES = {  # noqa: RUF012 a table
        "on_train_begin": hook("on_train_begin", None, "before the fit"),
        "on_epoch_begin": hook("on_epoch_begin", None, "before the steps"),
        "on_step_begin": hook("on_step_begin"),
        "on_substep_end": hook("on_substep_end"),
        "on_pre_optimizer_step": hook("on_pre_optimizer_step"),
        "on_optimizer_step": hook("on_optimizer_step"),
        "on_step_end": hook("on_step_end"),
        "on_log": hook("on_log"),
        "on_prediction_step": hook("on_prediction_step", "evaluation"),
        "on_evaluate": hook("on_evaluate", "evaluation"),
        "on_save": hook("on_save", "checkpoint"),
        "on_epoch_end": hook("on_epoch_end", None),
        "on_train_end": hook("on_train_end", None, "after the fit"),
        "the dataset": Place("data", item),
        "the collator": method("data_collator", "data"),
        "get_batch_samples of a subclass": subclass("get_batch_samples", "data"),
        "a layer": Place("forward", lambda training, act: training.layer.register_forward_pre_hook(act)),
        "the model": method("forward", "forward", model_of),
        "the inner model": method("forward", "forward", lambda training: training.trainer.model.model),
        "compute_loss": method("compute_loss", "forward"),
        "compute_loss of a subclass": subclass("compute_loss", "forward"),
        "compute_loss_func": Place("forward", loss),
        "a gradient": Place("backward", lambda training, act: training.head.weight.register_hook(act)),
        "accelerator.backward": method("backward", "backward", accelerator_of),
        "clipping": method("clip_grad_norm_", "optimizer", accelerator_of),
        "the optimizer": Place("optimizer", optimizer),
        **({"the scheduler": Place("optimizer", scheduler)} if SCHEDULER_IS_WATCHED else {}),
        "zero_grad": method("zero_grad", "optimizer", model_of),
        "training_step of a subclass": subclass("training_step", "other"),
        "floating_point_ops of a subclass": subclass("floating_point_ops", "other"),
        "a collection": collecting(lambda training: training.layer),
        "evaluate": method("evaluate", "evaluation"),
        "evaluate of a subclass": subclass("evaluate", "evaluation"),
        "evaluate for another callback": asking(lambda trainer: trainer.evaluate()),
        "predict for another callback": asking(lambda trainer: trainer.predict(Tokens(4))),
        "_save_checkpoint": method("_save_checkpoint", "checkpoint"),
        "_save_checkpoint of a subclass": subclass("_save_checkpoint", "checkpoint"),
        "save_model of a subclass": subclass("save_model", "checkpoint"),
    }
    UNSEEN = () if SCHEDULER_IS_WATCHED else ("zero_grad",)
    """Places of which an error is seen by the next fit alone, as one in the scheduler."""
    WAYS = {  # noqa: RUF012 a table
        order: {"order": order} for order in ("before ours", "after ours", "before ours, added late")
    }

    def __init__(
        self, directory, place=None, act=nothing, *, order="before ours", ours=None, callbacks=(), rows=None,
        arguments=None, **options,
    ):  # fmt: skip
        super().__init__(directory, place, act, **options)
        self.perf = ours or (PerfCallback(self.config) if self.measured else None)
        self.other = Other()
        often = {"eval_strategy": "steps", "eval_steps": self.evaluate} if self.evaluate else {}
        often |= {"save_strategy": "steps", "save_steps": self.save} if self.save else {}
        often |= {"max_steps": self.steps, "gradient_accumulation_steps": self.accumulate}
        several = [self.perf, self.other] if order == "after ours" else [self.other, self.perf]
        late = self.perf if order == "before ours, added late" else None
        self.trainer = trainer(
            training_arguments(directory, **often | (arguments or {})),
            Told(self),
            *[callback for callback in several if callback is not None and callback is not late],
            *callbacks,
            train_dataset=Tokens(rows or 4 * self.accumulate * self.steps),
            eval_dataset=Tokens(4),
            kind=type("Own", (Trainer,), {}),
        )
        self.layer, self.head = self.model.model.layers[0], self.model.lm_head
        if place:
            self.PLACES[place].install(self, act)
        if late:
            self.trainer.add_callback(late)

    @property
    def model(self):
        return self.trainer.model

    @property
    def step(self):
        return self.trainer.state.global_step + 1

    def run(self):
        self.trainer.train(resume_from_checkpoint=self.resume and str(self.directory / f"checkpoint-{self.resume}"))
        self.losses = [{key: row[key] for key in row if key in LOSSES} for row in self.trainer.state.log_history]
        return self

    def world(self):
        """Functions, hooks and callbacks on the objects of the trainer, and the state of the process."""
        trainer, handler, wrapped = self.trainer, self.trainer.callback_handler, self.trainer.optimizer
        owners = (trainer, handler, handler.train_dataloader, trainer.accelerator, trainer.lr_scheduler, trainer.model)
        found = as_found(*owners, wrapped, wrapped.optimizer, but={"gather_function"})  # an evaluation replaces it
        return found | {"callbacks": {id(callback) for callback in handler.callbacks}}
