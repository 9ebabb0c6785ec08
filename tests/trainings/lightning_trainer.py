"""A short training with Lightning's trainer, of either import tree, and the places in its loop."""

from faults import as_found

from trainings import lightning_kit
from trainings.place import Place, calling, collecting, hook, nothing, override
from trainings.training import Training


def method(name, stage, when="in a step", owner=lambda training: training.module):
    """A method, replaced on an object."""
    return Place(stage, override(name, owner), when)


def item(training, act):
    numbers = lightning_kit.Numbers
    slow = type("Slow", (numbers,), {"__getitem__": calling(act, numbers.__getitem__)})
    training.loader.dataset.__class__ = slow


def optimizer(training, act):
    original = training.module.configure_optimizers

    def configure():
        made = original()
        for one in [made["optimizer"]] if isinstance(made, dict) else made[0]:
            one.register_step_post_hook(act)
        return made

    training.module.configure_optimizers = configure


def after_closure(training, act):
    def optimizer_step(_epoch, _batch_idx, optimizer, closure):
        closure()
        act()
        optimizer.step()

    object.__setattr__(training.module, "optimizer_step", optimizer_step)


def zero_grad(training, act):
    original = training.module.optimizers

    def slowed():
        optimizers = original()
        for one in optimizers:
            if not hasattr(one, "slow"):
                one.slow = True
                override("zero_grad", lambda _, one=one: one)(training, act)
        return optimizers

    training.module.on_fit_start = slowed


def logger(training, act):
    training.trainer.loggers = [training.kinds.CSVLogger(training.trainer.default_root_dir)]
    override("log_metrics", lambda _: training.trainer.loggers[0])(training, act)


class Other:
    """Another callback, with the hook that a place needs."""

    loud = False

    def on_exception(self, *_):
        if self.loud:
            raise ValueError("and I fail as well")


class Saving:
    """Saves a checkpoint after every second step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % 2 == 0 and batch_idx % 2:
            trainer.save_checkpoint(f"{trainer.default_root_dir}/saved.ckpt")


class Losses:
    def __init__(self, training):
        self.training = training

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.training.losses += [loss.item() for loss in outputs.values()]  # manual optimization gives none


STEP_HOOKS = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
COMMON = {
    "the dataset": Place("data", item),
    "the collator": method("collate_fn", "data", owner=lambda training: training.loader),
    "a layer": Place("forward", lambda training, act: training.module.net[0].register_forward_pre_hook(act)),
    "training_step": method("training_step", "forward"),
    "a gradient": Place("backward", lambda training, act: training.module.net[0].weight.register_hook(act)),
    "the backward": method("backward", "backward"),
    "the optimizer": Place("optimizer", optimizer),
    "a logger": Place("other", logger),
    "on_train_batch_start of the module": method("on_train_batch_start", "other"),
    "on_train_batch_end of the module": method("on_train_batch_end", "other"),
    "a collection": collecting(lambda training: training.module.net[0]),
}
TRANSFER = {
    name: method(name, "data")
    for name in ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
}
HOOKS = {name: hook(name) for name in STEP_HOOKS}
AUTOMATIC = HOOKS | {
    "clipping": method("configure_gradient_clipping", "optimizer"),
    "optimizer_step": method("optimizer_step", "optimizer"),
    "an optimizer_step that calls the closure itself": Place("optimizer", after_closure),
    "optimizer_zero_grad": method("optimizer_zero_grad", "optimizer"),
    "lr_scheduler_step": method("lr_scheduler_step", "optimizer"),
    "on_before_optimizer_step of the module": method("on_before_optimizer_step", "other"),
}
MANUAL = {name: hook(name) for name in STEP_HOOKS if name != "on_before_zero_grad"}  # Lightning doesn't call it here
MANUAL["zero_grad in manual optimization"] = Place("optimizer", zero_grad)
OUTSIDE = {
    "setup": hook("setup", None, "before the fit"),
    "on_fit_start": hook("on_fit_start", None, "before the fit"),
    "on_sanity_check_start": hook("on_sanity_check_start", None, "before the fit"),
    "on_train_start": hook("on_train_start", None, "before the fit"),
    "setup of the module": method("setup", None, "before the fit"),
    "configure_optimizers": method("configure_optimizers", None, "before the fit"),
    "on_train_start of the module": method("on_train_start", None, "before the steps"),
    "on_train_epoch_start": hook("on_train_epoch_start", None, "before the steps"),
    "on_train_epoch_start of the module": method("on_train_epoch_start", None, "before the steps"),
    "on_train_epoch_end": hook("on_train_epoch_end", None),
    "on_train_end": hook("on_train_end", None, "at its end"),
    "on_fit_end": hook("on_fit_end", None, "after the fit"),
    "teardown": hook("teardown", None, "after the fit"),
    "on_train_end of the module": method("on_train_end", None, "after the fit"),
    "save_checkpoint": method("save_checkpoint", None, owner=lambda training: training.trainer.strategy),
}
ASIDES = {
    "validation_step": method("validation_step", "evaluation"),
    "the collator in validation": method("collate_fn", "evaluation", owner=lambda training: training.validation),
    "on_validation_start": hook("on_validation_start", "evaluation"),
    "on_validation_batch_end": hook("on_validation_batch_end", "evaluation"),
    "on_validation_end": hook("on_validation_end", "evaluation"),
    "on_save_checkpoint": hook("on_save_checkpoint", "checkpoint"),
    "on_save_checkpoint of the module": method("on_save_checkpoint", "checkpoint"),
}
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

    EVERYWHERE = Training.EVERYWHERE | {"saver": "first"}
    of = "lightning"

    def __init__(
        self, directory, place=None, act=nothing, *, of=None, kind=None, order="before ours", loud=False,
        saver="ModelCheckpoint", ours=None, callbacks=(), trainer=None, **options,
    ):  # fmt: skip
        super().__init__(directory, place, act, **options)
        self.of, self.order, self.loud, self.over = of or self.of, order, loud, self.first - 1
        self.kinds = kinds = lightning_kit.tree(self.of)
        kind = kind or ("Manual" if place in MANUAL.keys() - AUTOMATIC.keys() else "Automatic")
        self.perf = ours or kinds.PerfCallback(self.config)
        self.other, saving, losses = [self.of_tree(callback) for callback in (Other(), Saving(), Losses(self))]
        self.other.loud, self.many = loud, 2 if kind == "Manual" else 1
        measuring = [self.perf] if self.measured else []
        several = [losses, *([self.other, *measuring] if order == "before ours" else [*measuring, self.other])]
        checkpoints = bool(self.save) and saver == "ModelCheckpoint"
        if checkpoints:
            saving = kinds.callbacks.ModelCheckpoint(
                directory, "checkpoint-{step}", every_n_train_steps=self.save * self.many, save_top_k=-1,
                auto_insert_metric_name=False,
            )  # fmt: skip
        if self.save:
            several.insert(0 if saver == "first" else len(several), saving)
        self.module, self.validation = getattr(kinds, kind)(), lightning_kit.loader(4)
        self.loader = lightning_kit.loader(4 * self.accumulate * self.steps)
        usual = {"max_steps": self.steps * self.many, "enable_checkpointing": checkpoints}
        usual |= {} if kind == "Manual" else {"accumulate_grad_batches": self.accumulate}
        if self.evaluate:
            usual |= {"val_check_interval": self.accumulate * self.evaluate, "limit_val_batches": 1}
        self.trainer = lightning_kit.trainer(directory, *several, *callbacks, of=self.of, **usual | (trainer or {}))
        connector = self.trainer._logger_connector
        connector.update_train_step_metrics = self.telling(connector.update_train_step_metrics)
        if place:
            (KINDS[kind] | OUTSIDE | ASIDES)[place].install(self, act)

    def of_tree(self, callback):
        """A callback of the tree that the trainer is of."""
        callback.__class__ = type(type(callback).__name__, (type(callback), self.kinds.Callback), {})
        return callback

    def telling(self, method):
        """A method, called after our callback has ended a step: it does so with the batch, after all hooks."""

        def call():
            if self.trainer.global_step // self.many > self.over:
                self.over += 1
                self.after_step(self.over)
            method()

        return call

    @property
    def step(self):
        saves = self.place and self.PLACES[self.place].stage == "checkpoint"  # after the step, but in its hooks
        return self.trainer.global_step // self.many + 1 if saves else self.over + 1

    @property
    def model(self):
        return self.module

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
