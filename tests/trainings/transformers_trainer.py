"""A short training with the `Trainer` of transformers, and the places in its loop."""

import torch
from faults import as_found
from transformers import Trainer, TrainerCallback

from perf_callbacks.transformers import PerfCallback
from trainings.models import Tokens, trainer, training_arguments
from trainings.place import Place, collecting, hooks, method, nothing, registered, subclass
from trainings.training import Training

SCHEDULER_IS_WATCHED = hasattr(Trainer, "_run_epoch")
"""Transformers 4 calls the scheduler where no hook hears of an exception, and saves what is put on a scheduler."""
LOSSES = {"step", "loss", "grad_norm", "learning_rate", "eval_loss", "train_loss"}


def methods(stage, *names):
    return {name: Place(stage, method(f"trainer.{name}")) for name in names}


def subclasses(stage, *names):
    return {f"{name} of a subclass": Place(stage, subclass(f"trainer.{name}")) for name in names}


def loss(training, act):
    def compute(outputs, labels, num_items_in_batch=None):
        act()
        return outputs["logits"].float().mean() ** 2

    training.trainer.compute_loss_func = compute


def optimizer(training, act):
    training.trainer.create_optimizer().register_step_pre_hook(act)


def scheduler(training, act):
    training.trainer.create_optimizer()

    def rate(step):
        if step:  # the first call is in the constructor
            act()
        return 1.0

    training.trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(training.trainer.optimizer, rate)


def asking(ask):
    """Have a callback ask for an evaluation at once, in which the model is slow."""

    def install(training, act):
        def on_step_end(_args, state, _control, **_):
            if state.global_step % 2 == 0:
                ask(training.trainer)

        training.other.on_step_end = on_step_end
        training.trainer.model.register_forward_pre_hook(lambda module, _: None if module.training else act())

    return install


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

    PLACES = (
        hooks(None, "on_train_begin", when="before the fit")
        | hooks(None, "on_epoch_begin", when="before the steps")
        | hooks("other", "on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
        | hooks("other", "on_log")
        | hooks("evaluation", "on_prediction_step", "on_evaluate")
        | hooks("checkpoint", "on_save")
        | hooks(None, "on_epoch_end")
        | hooks(None, "on_train_end", when="after the fit")
        | methods("forward", "compute_loss")
        | methods("evaluation", "evaluate")
        | methods("checkpoint", "_save_checkpoint")
        | subclasses("data", "get_batch_samples")
        | subclasses("forward", "compute_loss")
        | subclasses("other", "training_step", "floating_point_ops")
        | subclasses("evaluation", "evaluate")
        | subclasses("checkpoint", "_save_checkpoint", "save_model")
        | ({"the scheduler": Place("optimizer", scheduler)} if SCHEDULER_IS_WATCHED else {})
        | {
            "the dataset": Place("data", subclass("trainer.train_dataset.__getitem__")),
            "the collator": Place("data", method("trainer.data_collator")),
            "a layer": Place("forward", registered("layer.register_forward_pre_hook")),
            "the model": Place("forward", method("model.forward")),
            "the inner model": Place("forward", method("model.model.forward")),
            "compute_loss_func": Place("forward", loss),
            "a gradient": Place("backward", registered("model.lm_head.weight.register_hook")),
            "accelerator.backward": Place("backward", method("trainer.accelerator.backward")),
            "clipping": Place("optimizer", method("trainer.accelerator.clip_grad_norm_")),
            "the optimizer": Place("optimizer", optimizer),
            "zero_grad": Place("optimizer", method("model.zero_grad")),
            "a collection": Place("gc", registered("layer.register_forward_pre_hook", collecting)),
            "evaluate for another callback": Place("evaluation", asking(lambda trainer: trainer.evaluate())),
            "predict for another callback": Place("evaluation", asking(lambda trainer: trainer.predict(Tokens(4)))),
        }
    )
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
        self.layer = self.model.model.layers[0]
        self.install()
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
