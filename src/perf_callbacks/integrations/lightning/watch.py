"""Watched methods of a Lightning trainer, which show stages and steps. Its hooks would cost more time."""

import functools
from collections.abc import Callable
from typing import Any

from perf_callbacks.integrations import methods
from perf_callbacks.kernel.batches.waiting import untrained
from perf_callbacks.kernel.engine.marks import BACK, BEGIN, END
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.recorder import Recorder

BATCH_END = "on_batch_end"  # of the logger connector, called after each batch

_OPTIMIZER = BEGIN[Stage.OPTIMIZER]


def steps_done(trainer: Any) -> int:
    """Return the steps that a trainer has done, including those before a resume.

    Under manual optimization, each batch is a step, unless it is None or a hook skips it: `global_step` would count the
    steps of each optimizer.
    """
    if trainer.lightning_module.automatic_optimization:
        return int(trainer.global_step)
    return int(trainer.fit_loop.epoch_loop.batch_progress.total.started)


class TrainerWatch:
    """Records stages and steps by wrapping methods of the trainer and its parts."""

    def __init__(self, callback: Any, trainer: Any, recorder: Recorder) -> None:
        self.recorder = recorder
        self._callback = callback
        self.steps = recorder.run.step
        self._trainer = trainer
        self._loop = loop = trainer.fit_loop.epoch_loop
        self._automatic = trainer.lightning_module.automatic_optimization
        self._progress = loop.automatic_optimization.optim_progress if self._automatic else None
        self._fetches_itself = hasattr(getattr(trainer.fit_loop, "_data_fetcher", None), "iterator_wrapper")
        """`training_step` takes a `dataloader_iter`, and fetches batches itself."""
        self._skipped = False  # the last `training_step` returned None, so the trainer skipped the batch

    def install(self) -> None:
        recorder, trainer, loop = self.recorder, self._trainer, self._loop
        recorder.reader.several = _several(trainer)
        self._watch_exits()
        methods.stages(recorder, trainer.fit_loop, "setup_data", Stage.DATA)
        methods.stages(recorder, loop, "on_run_start", Stage.DATA)  # makes the iterator from the second epoch on
        self._watch_fetch()
        recorder.patches.method(trainer.strategy, "training_step", self._training_step)
        methods.stages(recorder, trainer.precision_plugin, "backward", Stage.BACKWARD)
        self._watch_optimizer()
        self._watch_ends()
        methods.spans(recorder, loop.val_loop, "run", "evaluation")
        methods.spans(recorder, trainer, "save_checkpoint", "checkpoint", first=self._settle)
        for logger in trainer.loggers:  # `ModelCheckpoint` calls them after `save_checkpoint`: some upload the file
            if getattr(logger.after_save_checkpoint, "__qualname__", None) != "Logger.after_save_checkpoint":
                methods.spans(recorder, logger, "after_save_checkpoint", "checkpoint")

    def _watch_exits(self) -> None:
        """End the fit with an exception in the training loop, and the last step of each epoch.

        `on_exception` is too late: if a callback fails in it, the original exception is lost. If a callback raises
        `StopIteration`, the epoch ends in the middle of a batch, and `_settle` ends its step.
        """
        recorder, trainer = self.recorder, self._trainer
        settle = functools.partial(recorder.attempt, self._settle)
        recorder.patches.method(trainer.fit_loop, "on_advance_end", functools.partial(methods.around, before=settle))
        methods.exits(recorder, trainer.lightning_module, "on_train_start")
        methods.exits(recorder, trainer.strategy, "on_train_start")
        for name in ("on_advance_start", "advance", "on_advance_end", "on_run_end"):
            methods.exits(recorder, trainer.fit_loop, name, before=self._settle if name == "advance" else None)

    def _watch_fetch(self) -> None:
        """If `training_step` fetches batches itself, a fetch interrupts a stage, which continues afterwards."""
        recorder, loop = self.recorder, self._loop
        methods.turns(recorder, loop, "_on_before_fetch", BEGIN[Stage.DATA] if self._fetches_itself else Stage.DATA)
        if self._fetches_itself:
            methods.turns(recorder, loop, "_on_after_fetch", BACK)
        then = None if self._fetches_itself else Stage.OTHER
        methods.stages(recorder, self._trainer.strategy, "batch_to_device", Stage.DATA, then=then)

    def _watch_optimizer(self) -> None:
        """Under manual optimization, these calls lie inside `training_step`."""
        recorder, trainer, strategy = self.recorder, self._trainer, self._trainer.strategy
        precision, optimization = trainer.precision_plugin, self._loop.automatic_optimization
        enclosed = self._automatic and _closure_is_enclosed(trainer)
        # The hooks of callbacks and module run between the backward and clipping, and count as other.
        if enclosed and getattr(precision._after_closure, "__qualname__", None) == "Precision._after_closure":  # noqa: SLF001
            methods.turns(recorder, precision, "_clip_gradients", Stage.OPTIMIZER)  # the last call in `_after_closure`
        else:
            methods.stages(recorder, precision, "_after_closure", Stage.OTHER, then=Stage.OPTIMIZER)
            methods.stages(recorder, precision, "_clip_gradients", Stage.OPTIMIZER)
        if self._automatic:
            if enclosed:
                methods.stages(recorder, optimization, "_optimizer_step", Stage.OPTIMIZER)
            else:
                recorder.patches.method(optimization, "_optimizer_step", self._optimizer_step)
            methods.stages(recorder, optimization, "_optimizer_zero_grad", Stage.OPTIMIZER)
            if trainer.lr_scheduler_configs:
                methods.stages(recorder, self._loop, "update_lr_schedulers", Stage.OPTIMIZER)
            return
        methods.stages(recorder, strategy, "backward", Stage.OTHER)  # hooks around the precision plugin's `backward`
        recorder.patches.method(strategy, "optimizer_step", self._optimizer_step)
        for optimizer in (*strategy.optimizers, *getattr(strategy, "_lightning_optimizers", ())):
            methods.stages(recorder, optimizer, "zero_grad", Stage.OPTIMIZER)

    def _watch_ends(self) -> None:
        """The logger connector's `on_batch_end` is quicker than a hook. Neither runs for a skipped batch."""
        owner, name = getattr(self._trainer, "_logger_connector", None), BATCH_END
        if not hasattr(owner, name):
            owner, name = self._callback, "on_train_batch_end"
        self.recorder.patches.method(owner, name, self._end_batch)

    def _end_batch(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """It is also called after validation batches."""
        recorder, trainer, loop, progress = self.recorder, self._trainer, self._loop, self._progress
        engine, observers, tape, clock = recorder.engine, recorder.observers, recorder.tape, recorder.clock
        callback, fetches_itself, seen = self._callback, self._fetches_itself, self.steps

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            try:
                if fetches_itself and trainer.training:
                    recorder.batch(trainer.fit_loop._data_fetcher._batch)  # noqa: SLF001 as the trainer does
                    if self._skipped and engine.batches:
                        engine.batches[-1] = untrained(engine.batches[-1])
                steps = progress.optimizer_steps if progress is not None else steps_done(trainer)
                if steps != self.steps:
                    self.steps, now = steps, clock()
                    if steps < observers.due and now < engine.flush_at:  # as `Recorder.end_step`, without its frame
                        engine.ended.append((steps, engine.excluded, engine.batches))
                        tape.write((END, now))
                        engine.step, engine.excluded, engine.batches = steps, None, []
                    else:
                        recorder.end_step(steps)
                if steps != seen:
                    seen, every = steps, trainer.log_every_n_steps
                    # The connector decides the same for the loss, a moment later and at the same step.
                    logs = not every or (loop._batches_that_stepped + 1) % every == 0  # noqa: SLF001 its counter
                    if logs or trainer.should_stop or trainer.fast_dev_run:
                        callback.log_row(trainer, steps)
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                callback.fail(error)
            return inner(*args, **kwargs)

        return call

    def _settle(self, _recorder: Recorder) -> None:
        """Another callback's checkpoint must count the step that the trainer has just completed."""
        steps = steps_done(self._trainer)
        if steps != self.steps:
            self.steps = steps
            self.recorder.end_step(steps)

    def _training_step(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Some optimizers call `training_step` several times with the same batch."""
        recorder, fetches_itself, progress = self.recorder, self._fetches_itself, self._loop.batch_progress.total
        tape, clock, fail, take = recorder.tape, recorder.clock, recorder.fail, recorder.batch
        taken: int | None = None
        automatic, engine = self._automatic, recorder.engine

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal taken
            try:
                if len(args) > 1 and not fetches_itself and taken != progress.started:
                    taken = progress.started
                    take(args[1])
                tape.write((Stage.FORWARD, clock()))
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                fail(error)
            output: Any = ...
            try:
                output = inner(*args, **kwargs)
                return output
            finally:
                try:
                    if automatic:  # without an output, the trainer calls no backward
                        self._skipped = output is None
                        if self._skipped and engine.batches and not fetches_itself:
                            engine.batches[-1] = untrained(engine.batches[-1])
                    tape.write((Stage.OTHER, clock()))
                except Exception as error:  # noqa: BLE001 as above
                    fail(error)

        return call

    def _optimizer_step(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Leave the time of the closure out of the stage `optimizer`.

        Under automatic optimization, it is Lightning's `Closure`, which the module may inspect: it stays, and only its
        inner function is replaced until the step is over. Under manual optimization, it may be any function.
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


def _several(trainer: Any) -> bool:
    """Return True if batches combine those of several loaders, as in all modes except "sequential"."""
    combined = getattr(trainer.fit_loop, "_combined_loader", None)
    loaders = getattr(combined, "iterables", None)
    return isinstance(loaders, dict | list | tuple) and getattr(combined, "_mode", None) != "sequential"


def _closure_is_enclosed(trainer: Any) -> bool:
    """Not so if a module overrides `optimizer_step`, or a plugin unscales gradients."""
    module, precision = trainer.lightning_module, trainer.precision_plugin
    plain = {"Precision.optimizer_step", "MixedPrecision.optimizer_step"}  # the latter only unscales with a scaler
    return (
        getattr(module.optimizer_step, "__qualname__", None) == "LightningModule.optimizer_step"
        and getattr(precision.optimizer_step, "__qualname__", None) in plain
        and getattr(precision, "scaler", None) is None
    )
