"""Callback for the Hugging Face `Trainer` and its subclasses."""

import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import accelerate  # type: ignore[import-untyped]
from tqdm.auto import tqdm
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from perf_callbacks.integrations import saved_counters
from perf_callbacks.integrations.callback_order import CallbackListCopy, measures, move_to_front, settled
from perf_callbacks.integrations.restore_time import RestoreTime
from perf_callbacks.integrations.transformers import options
from perf_callbacks.integrations.transformers.watch import (
    EVERY_STEP,
    READS,
    TransformersWatch,
    checkpoint_name,
    find_trainer,
    resumed_from,
)
from perf_callbacks.kernel.failures import fails_open, guard
from perf_callbacks.kernel.fit.item import Batches
from perf_callbacks.kernel.fit.location import FitLocation, data_parallel
from perf_callbacks.kernel.fit.recorder import log
from perf_callbacks.kernel.fit.training_objects import TrainingObjects
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.session import CallbackBase, Session

_hook: Callable[[Callable[..., None]], Callable[..., None]] = fails_open
"""Decorator of hooks. An exception in a decorated hook never ends the run."""


class PerfCallback(CallbackBase, TrainerCallback):
    """Measures the stages of each optimizer step, such as forward and backward, and logs their times beside the loss.

    The trainer logs metrics named `perf/*` together with each training loss. So the metrics appear in
    `state.log_history`, in `trainer_state.json`, and in the loggers of `report_to`. By default, the console shows only
    the main metrics. The metrics cover the steps since the previous log. The metrics leave out the first step of the
    run, and every step with an evaluation or a checkpoint. The last log of a run, which contains `train_runtime`, also
    contains averages over the run, named `perf/run/*`.

    While `train` runs, the callback replaces methods of the trainer, so that it sees when each stage begins and ends.
    All methods are restored when `train` ends, even after an exception. Before training begins, the callback also
    measures the time in the trainer's three methods that read a checkpoint. If a trainer has several callbacks of this
    class, only the first enabled one measures.
    """

    __module__ = "perf_callbacks.transformers"  # the name in pickles and configurations

    elsewhere = "Lightning's Trainer, take perf_callbacks.lightning.PerfCallback"

    def __init__(self, config: PerfConfig | None = None, **strays: NoReturn) -> None:
        self._session = Session(
            config, functools.partial(terminal.show, write=tqdm.write), strays=strays, armed=self.armed
        )
        self._restoring = RestoreTime()
        self._restore_seconds: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without replaced hooks, because a copy of the callback measures a fit of its own."""
        kept = {name: value for name, value in self.__dict__.items() if name not in EVERY_STEP}
        return {**kept, "_restoring": RestoreTime()}

    @_hook
    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        trainer = find_trainer(self)
        if trainer is not None:
            move_to_front(trainer.callback_handler.callbacks, self)  # before the loggers, which log our metrics
            if self._session.enabled and not trainer.is_deepspeed_enabled:  # DeepSpeed reads checkpoints by itself
                self._restoring.watch(trainer, *READS)

    def fail(self, error: Exception) -> None:
        """Log an error of this package once, stop measuring, and undo all changes, even those of `on_init_end`."""
        try:
            super().fail(error)
        finally:
            self._restoring.take()

    @_hook
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._session.end("another fit began")
        self._restore_seconds = self._restoring.take()
        trainer = find_trainer(self)
        if trainer is None:
            log.warning("perf_callbacks measures nothing: this PerfCallback is in no transformers.Trainer.")
            return
        handler = trainer.callback_handler
        if not measures(self, handler.callbacks):
            return
        # Other callbacks go first: if a callback raises, nothing of ours is in place yet. The handler is iterating over
        # its list right now: `_FitBeginning` is appended to that list and runs last. The handler's new list lacks it.
        move_to_front(handler.callbacks, self)
        handler.callbacks = CallbackListCopy(handler.callbacks, _FitBeginning(self, trainer))

    @_hook
    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._session.recorder is not None:
            self._session.recorder.observers.epoch_ended()

    @_hook
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        recorder = self._session.recorder
        if recorder is None or logs is None:
            return
        # Subclasses rename the loss (SetFit), and log values of their own within a step. Only the log of the training
        # loop has the learning rate. With `include_num_input_tokens_seen`, that log has `train_runtime` too.
        if "loss" in logs or any(str(name).endswith("learning_rate") for name in logs):
            metrics = recorder.row(state.global_step)
        elif "train_runtime" in logs:
            metrics = recorder.whole(state.global_step)
        else:
            return
        # The trainer has put a copy into its history already. The loggers after us get `logs`.
        logs.update(metrics or {})
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(metrics or {})

    @_hook
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._session.end()
        self._session.show_summary()

    def begin(self, args: TrainingArguments, state: TrainerState, trainer: Trainer) -> None:
        """Start measuring, after all other callbacks have run `on_train_begin`."""
        self._session.begin(
            _location(args, state, trainer, self._restore_seconds),
            functools.partial(TransformersWatch, trainer, self),
            trainer.model,
            lambda: _batches(args, state, trainer),
            objects=lambda: _objects(args, trainer),
        )


class ArmedCallback(PerfCallback):
    """Callback that a launcher, such as `perf-callbacks run`, adds to every trainer of a program."""

    armed = True


class _FitBeginning(TrainerCallback):
    """Callback that begins the fit, after all other callbacks have run `on_train_begin`."""

    def __init__(self, callback: PerfCallback, trainer: Trainer) -> None:
        self.active = True
        self.fail = callback.fail
        self._begin = callback.begin
        self._trainer = weakref.ref(trainer)

    @_hook
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        trainer = self._trainer()
        if trainer is not None:
            trainer.callback_handler.callbacks = settled(trainer.callback_handler.callbacks)
            self._begin(args, state, trainer)


def _location(args: TrainingArguments, state: TrainerState, trainer: Trainer, seconds: float | None) -> FitLocation:
    return FitLocation(
        integration="transformers",
        directory=Path(args.output_dir or "."),
        device=args.device,
        rank=args.process_index,
        world_size=args.world_size,
        devices=max(1, args.n_gpu),
        data_parallel=data_parallel(trainer.accelerator),
        step=state.global_step,
        carried=_carried(args, state, trainer),
        restore_seconds=seconds if state.global_step else None,
    )


def _carried(args: TrainingArguments, state: TrainerState, trainer: Trainer) -> dict[str, Any] | None:
    """Return the counters of the checkpoint from which the trainer resumes."""
    if not state.global_step:
        return None
    directory = resumed_from(trainer) or Path(args.output_dir or ".", checkpoint_name(state))
    return saved_counters.read(directory, 0)


def _objects(args: TrainingArguments, trainer: Trainer) -> TrainingObjects:
    known: dict[str, Any] = {}
    with guard(let_pass):  # a trainer of the user's own may be anything
        known = {"options": options.effective(args, trainer), "rarer": options.rarer(args)}
    every = int(args.logging_steps) if args.logging_strategy == "steps" and args.logging_steps >= 1 else None
    return TrainingObjects(
        optimizers=(trainer.optimizer,),
        loaders=(trainer.callback_handler.train_dataloader,),
        called=trainer.model_wrapped,
        log_every=every,
        nan_filter=bool(args.logging_nan_inf_filter),
        **known,
    )


def _batches(args: TrainingArguments, state: TrainerState, trainer: Trainer) -> Batches:
    """Describe how batches get to the device.

    After a resume, accelerate's loader skips batches, and loses the option `non_blocking`.
    """
    return Batches(
        pinned=args.dataloader_pin_memory,
        copied_aside=bool(getattr(trainer.accelerator, "non_blocking", False)) and not state.global_step,
        copy=(accelerate.data_loader, "send_to_device"),
        devices=max(1, args.n_gpu),
        workers=args.dataloader_num_workers,
    )
