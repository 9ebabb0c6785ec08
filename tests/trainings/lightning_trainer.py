"""A short training with Lightning's trainer, of either import tree, and the places in its loop."""

from faults import as_found

from trainings import lightning_kit
from trainings.place import Place, calling, collecting, hooks, method, nothing, registered, subclass
from trainings.training import Training

OF_THE_MODULE = " of the module"


def optimizer(training, act):
    original = training.module.optimizers_and_schedulers

    def made():
        optimizers, schedulers = original()
        for optimizer in optimizers:
            optimizer.register_step_post_hook(act)
        return optimizers, schedulers

    training.module.optimizers_and_schedulers = made


def after_closure(training, act):
    def optimizer_step(_epoch, _batch_idx, optimizer, closure):
        closure()
        act()
        optimizer.step()

    object.__setattr__(training.module, "optimizer_step", optimizer_step)


def zero_grad(training, act):
    def on_fit_start():
        for optimizer in training.module.optimizers():
            object.__setattr__(optimizer, "zero_grad", calling(act, optimizer.zero_grad))

    training.module.on_fit_start = on_fit_start


def logger(training, act):
    training.trainer.loggers = [training.kinds.CSVLogger(training.trainer.default_root_dir)]
    method("trainer.logger.log_metrics")(training, act)


def methods(stage, *names, of="", when="in a step"):
    """Methods of the module."""
    return {f"{name}{of}": Place(stage, method(f"module.{name}"), when) for name in names}


class Other:
    """Another callback, with the hook that a place needs. It may save after every second step, and raise at errors."""

    loud = saves = False

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.saves and trainer.global_step % 2 == 0 and batch_idx % 2:
            trainer.save_checkpoint(f"{trainer.default_root_dir}/saved.ckpt")

    def on_exception(self, *_):
        if self.loud:
            raise ValueError("and I fail as well")


COMMON = {
    "the dataset": Place("data", subclass("loader.dataset.__getitem__")),
    "the collator": Place("data", method("loader.collate_fn")),
    "a layer": Place("forward", registered("layer.register_forward_pre_hook")),
    **methods("forward", "training_step"),
    "a gradient": Place("backward", registered("layer.weight.register_hook")),
    "the backward": Place("backward", method("module.backward")),
    "the optimizer": Place("optimizer", optimizer),
    "a logger": Place("other", logger),
    **methods("other", "on_train_batch_start", "on_train_batch_end", of=OF_THE_MODULE),
    "a collection": Place("gc", registered("layer.register_forward_pre_hook", collecting)),
}
TRANSFER = methods("data", "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
COMMON_HOOKS = hooks(
    "other", "on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step"
)
COMMON_HOOKS |= hooks("other", "on_train_batch_end")
HOOKS = COMMON_HOOKS | hooks("other", "on_before_zero_grad")  # not called in manual optimization
AUTOMATIC = (
    HOOKS
    | methods("optimizer", "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step")
    | {"an optimizer_step that calls the closure itself": Place("optimizer", after_closure)}
    | methods("other", "on_before_optimizer_step", of=OF_THE_MODULE)
)
MANUAL = COMMON_HOOKS | {"zero_grad in manual optimization": Place("optimizer", zero_grad)}
OUTSIDE = (
    hooks(None, "setup", "on_fit_start", "on_sanity_check_start", "on_train_start", when="before the fit")
    | methods(None, "setup", "configure_optimizers", of=OF_THE_MODULE, when="before the fit")
    | hooks(None, "on_train_epoch_start", when="before the steps")
    | methods(None, "on_train_start", "on_train_epoch_start", of=OF_THE_MODULE, when="before the steps")
    | hooks(None, "on_train_epoch_end")
    | hooks(None, "on_train_end", when="at its end")
    | hooks(None, "on_fit_end", "teardown", when="after the fit")
    | methods(None, "on_train_end", of=OF_THE_MODULE, when="after the fit")
    | {"save_checkpoint": Place(None, method("trainer.strategy.save_checkpoint"))}
)
ASIDES = (
    methods("evaluation", "validation_step")
    | {"the collator in validation": Place("evaluation", method("validation.collate_fn"))}
    | hooks("evaluation", "on_validation_start", "on_validation_batch_end", "on_validation_end")
    | hooks("checkpoint", "on_save_checkpoint")
    | methods("checkpoint", "on_save_checkpoint", of=OF_THE_MODULE)
)
KINDS = {
    "Automatic": COMMON | TRANSFER | AUTOMATIC,
    "Manual": COMMON | TRANSFER | MANUAL,
    "Iterating": COMMON | AUTOMATIC,
}
"""The places in the steps of each kind of module."""


class LightningTraining(Training):
    """`order` is that of another callback and ours; `options` are those of the trainer."""

    PLACES = COMMON | TRANSFER | MANUAL | AUTOMATIC | OUTSIDE | ASIDES
    WAYS = {  # noqa: RUF012 a table
        f"{of}, {order}{', loud' * loud}": {"of": of, "order": order, "loud": loud}
        for of in lightning_kit.FRAMEWORKS
        for order in ("after ours", "before ours")
        for loud in (False, True)
    }

    EVERYWHERE = Training.EVERYWHERE | {"saver": "other"}
    of = "lightning"

    def __init__(
        self, directory, place=None, act=nothing, *, of=None, kind=None, order="before ours", loud=False,
        saver="ModelCheckpoint", ours=None, callbacks=(), trainer=None, **options,
    ):  # fmt: skip
        super().__init__(directory, place, act, **options)
        self.of, self.order, self.loud, self.over = of or self.of, order, loud, self.first - 1
        self.kinds = kinds = lightning_kit.tree(self.of)
        kind = kind or ("Manual" if place in MANUAL.keys() - AUTOMATIC.keys() else "Automatic")
        self.perf = ours or (kinds.PerfCallback(self.config) if self.measured else None)
        self.other, self.many = type("Other", (Other, kinds.Callback), {})(), 2 if kind == "Manual" else 1
        self.other.loud, self.other.saves = loud, self.save and saver == "other"
        several = [self.other, self.perf] if order == "before ours" else [self.perf, self.other]
        checkpoints = bool(self.save) and saver == "ModelCheckpoint"
        if checkpoints:
            every = {"every_n_train_steps": self.save * self.many, "save_top_k": -1, "auto_insert_metric_name": False}
            several.append(kinds.callbacks.ModelCheckpoint(directory, "checkpoint-{step}", **every))
        self.model = self.module = getattr(kinds, kind)()
        self.layer, self.loader = self.module.net[0], lightning_kit.loader(4 * self.accumulate * self.steps)
        self.validation = lightning_kit.loader(4)
        usual = {"max_steps": self.steps * self.many, "enable_checkpointing": checkpoints}
        usual |= {} if kind == "Manual" else {"accumulate_grad_batches": self.accumulate}
        if self.evaluate:
            usual |= {"val_check_interval": self.accumulate * self.evaluate, "limit_val_batches": 1}
        self.trainer = lightning_kit.trainer(
            directory, *filter(None, several), *callbacks, of=self.of, **usual | (trainer or {})
        )
        connector = self.trainer._logger_connector
        connector.update_train_step_metrics = self.telling(connector.update_train_step_metrics)
        self.install()

    def telling(self, method):
        """A method, called after our callback has ended a step: it does so with the batch, after all hooks."""

        def call():
            self.losses.append(self.trainer.callback_metrics["loss"].item())
            if self.trainer.global_step // self.many > self.over:
                self.over += 1
                self.after_step(self.over)
            method()

        return call

    @property
    def step(self):
        saves = self.place and self.PLACES[self.place].stage == "checkpoint"  # after the step, but in its hooks
        return self.trainer.global_step // self.many + 1 if saves else self.over + 1

    def run(self):
        self.before = self.world()
        checkpoint = self.resume and self.directory / f"checkpoint-{self.resume * self.many}.ckpt"
        self.trainer.fit(self.module, self.loader, self.validation if self.evaluate else None, ckpt_path=checkpoint)
        return self

    def again(self):
        """Another trainer with the same callback."""
        return type(self)(self.directory / "again", of=self.of, order=self.order, ours=self.perf, **self.EVERYWHERE)

    def world(self):
        """Functions, hooks and callbacks on the objects of the trainer, and the state of the process."""
        trainer, loop = self.trainer, self.trainer.fit_loop
        owners = [trainer, loop, loop.epoch_loop, loop.epoch_loop.val_loop, loop.epoch_loop.automatic_optimization]
        owners += [trainer.strategy, trainer.precision_plugin, trainer._logger_connector, self.module, self.loader]
        return as_found(*owners) | {"callbacks": [id(callback) for callback in trainer.callbacks if callback]}


class PytorchLightningTraining(LightningTraining):
    of = "pytorch_lightning"
