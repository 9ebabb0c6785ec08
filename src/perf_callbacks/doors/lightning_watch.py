"""What is watched of a Lightning trainer: its loops, its strategy, its precision plugin. They cost less than hooks."""

import functools
from collections.abc import Callable
from typing import Any

from perf_callbacks.core.marks import BACK, BEGIN
from perf_callbacks.core.stages import Stage
from perf_callbacks.doors import methods
from perf_callbacks.session.recorder import Recorder

_OPTIMIZER = BEGIN[Stage.OPTIMIZER]


def steps_done(trainer: Any) -> int:
    """Optimizer steps that this trainer has behind it, in earlier attempts too; batches, under manual optimization.

    `global_step` counts each of several optimizers. A batch that is skipped, or that is None, is not started.
    """
    if trainer.lightning_module.automatic_optimization:
        return int(trainer.global_step)
    return int(trainer.fit_loop.epoch_loop.batch_progress.total.started)


class TrainerWatch:
    """Tells a recorder what the trainer does, from calls between its parts."""

    def __init__(self, recorder: Recorder, trainer: Any) -> None:
        self.recorder = recorder
        self.steps = self._told = recorder.run.step
        self._trainer = trainer
        loop = trainer.fit_loop.epoch_loop
        automatic = trainer.lightning_module.automatic_optimization
        self._progress = loop.automatic_optimization.optim_progress if automatic else None
        self._fetches_itself = hasattr(getattr(trainer.fit_loop, "_data_fetcher", None), "iterator_wrapper")
        """Whether `training_step` takes a `dataloader_iter`."""
        self._taken = False

    def install(self) -> None:
        """Begin to watch. The recorder takes it all back when it closes."""
        recorder, trainer = self.recorder, self._trainer
        strategy, precision, loop = trainer.strategy, trainer.precision_plugin, trainer.fit_loop.epoch_loop
        recorder.reader.several = _several(trainer)
        self._watch_exits()
        methods.stages(recorder, trainer.fit_loop, "setup_data", Stage.DATA)
        methods.stages(recorder, loop, "on_run_start", Stage.DATA)  # from the second epoch on, it makes the iterator
        self._watch_fetch()
        methods.stages(recorder, strategy, "training_step", Stage.FORWARD)
        recorder.patches.method(strategy, "training_step", self._take)
        methods.stages(recorder, precision, "backward", Stage.BACKWARD)
        self._watch_optimizer()
        methods.spans(recorder, loop.val_loop, "run", "evaluation")
        methods.spans(recorder, trainer, "save_checkpoint", "checkpoint")
        recorder.patches.method(trainer, "save_checkpoint", self._settle)

    def _watch_exits(self) -> None:
        """An exception is seen where it leaves the loop: a callback that fails in `on_exception` hides it from us."""
        recorder, trainer = self.recorder, self._trainer
        methods.exits(recorder, trainer.lightning_module, "on_train_start")
        methods.exits(recorder, trainer.strategy, "on_train_start")
        for name in ("on_advance_start", "advance", "on_advance_end", "on_run_end"):
            methods.exits(recorder, trainer.fit_loop, name)

    def _watch_fetch(self) -> None:
        """What is fetched goes to the device at once, unless `training_step` does it."""
        recorder, loop = self.recorder, self._trainer.fit_loop.epoch_loop
        recorder.patches.method(loop, "_on_before_fetch", self._fetch)
        if self._fetches_itself:
            recorder.patches.method(loop, "_on_after_fetch", self._fetched)
        then = None if self._fetches_itself else Stage.OTHER
        methods.stages(recorder, self._trainer.strategy, "batch_to_device", Stage.DATA, then=then)

    def _watch_optimizer(self) -> None:
        """Under manual optimization `training_step` does it all: what is not forward comes from inside of it."""
        recorder, trainer, strategy = self.recorder, self._trainer, self._trainer.strategy
        loop, precision = trainer.fit_loop.epoch_loop, trainer.precision_plugin
        # The hooks of callbacks and module come between the backward and clipping.
        methods.stages(recorder, precision, "_after_closure", Stage.OTHER)
        methods.stages(recorder, precision, "_clip_gradients", Stage.OPTIMIZER)
        if trainer.lightning_module.automatic_optimization:
            recorder.patches.method(loop.automatic_optimization, "_optimizer_step", self._optimizer_step)
            methods.stages(recorder, loop.automatic_optimization, "_optimizer_zero_grad", Stage.OPTIMIZER)
            if trainer.lr_scheduler_configs:
                methods.stages(recorder, loop, "update_lr_schedulers", Stage.OPTIMIZER)
            return
        methods.stages(recorder, strategy, "backward", Stage.OTHER)  # hooks around the precision plugin's
        recorder.patches.method(strategy, "optimizer_step", self._optimizer_step)
        for optimizer in (*strategy.optimizers, *getattr(strategy, "_lightning_optimizers", ())):
            methods.stages(recorder, optimizer, "zero_grad", Stage.OPTIMIZER)

    def end_batch(self, batch: object) -> bool:
        """A micro-batch is done; whether an optimizer step is."""
        if self._fetches_itself:
            self.recorder.batch(batch)
        self._taken = False
        self.end_step()
        told, self._told = self._told, self.steps
        return told != self.steps

    def logs_now(self) -> bool:
        """Whether what is logged may be logged now."""
        trainer = self._trainer
        every = trainer.log_every_n_steps
        batch = trainer.fit_loop.epoch_loop._batches_that_stepped + 1  # noqa: SLF001 what the trainer goes by
        return not every or batch % every == 0 or trainer.should_stop or bool(trainer.fast_dev_run)

    def end_step(self) -> None:
        """If there was an optimizer step since the last one, it is done."""
        # As `steps_done`, by a shorter way.
        steps = steps_done(self._trainer) if self._progress is None else self._progress.optimizer_steps
        if steps != self.steps:
            self.steps = steps
            self.recorder.end_step(steps)

    def _fetch(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """What is fetched for a `dataloader_iter` comes back into the `training_step` that asked for it."""
        mark = BEGIN[Stage.DATA] if self._fetches_itself else Stage.DATA

        @functools.wraps(inner)
        def call(loop: Any) -> Any:
            self.recorder.enter(mark)
            return inner(loop)

        return call

    def _fetched(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(loop: Any) -> Any:
            try:
                return inner(loop)
            finally:
                self.recorder.enter(BACK)

        return call

    def _take(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """`strategy.training_step`: a batch that gets here is trained on. Some optimizers call it more than once."""

        @functools.wraps(inner)
        def call(strategy: Any, *args: Any, **kwargs: Any) -> Any:
            if args and not self._taken and not self._fetches_itself:
                self._taken = True
                self.recorder.batch(args[0])
            return inner(strategy, *args, **kwargs)

        return call

    def _optimizer_step(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the step of an optimizer: whatever its closure does is not the optimizer's.

        Automatic optimization passes a `Closure` of Lightning's on to the module, which may look at it: it stays that
        object, and what it calls is replaced until the step is over. Otherwise the closure is any function.
        """

        @functools.wraps(inner)
        def call(owner: Any, first: Any, closure: Any, *args: Any, **kwargs: Any) -> Any:
            enter = self.recorder.enter
            lightnings = hasattr(closure, "consume_result")
            compute = closure.closure if lightnings else closure

            def outside(*closure_args: Any, **closure_kwargs: Any) -> Any:
                enter(BACK)
                try:
                    return compute(*closure_args, **closure_kwargs)
                finally:
                    enter(_OPTIMIZER)

            if lightnings:
                closure.closure = outside
            enter(_OPTIMIZER)
            try:
                return inner(owner, first, closure if lightnings else outside, *args, **kwargs)
            finally:
                enter(BACK)
                if lightnings:
                    vars(closure).pop("closure", None)  # else a cycle would keep its batch

        return call

    def _settle(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpoint counts the step whose batch is done, also where another callback saves it before our turn."""

        @functools.wraps(inner)
        def call(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            self.recorder.attempt(lambda _: self.end_step())
            return inner(trainer, *args, **kwargs)

        return call


def _several(trainer: Any) -> bool:
    """Each batch holds one of each of several loaders. Those that come one after the other hand over plain batches."""
    combined = getattr(trainer.fit_loop, "_combined_loader", None)
    loaders = getattr(combined, "iterables", None)
    return isinstance(loaders, dict | list | tuple) and getattr(combined, "_mode", None) != "sequential"
