"""The door for the Hugging Face `Trainer` and its subclasses.

from perf_callbacks.transformers import PerfCallback

trainer = Trainer(..., callbacks=[PerfCallback()])
"""

import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import accelerate  # type: ignore[import-untyped]
import transformers
from tqdm.auto import tqdm
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from perf_callbacks.integrations import saved_counters
from perf_callbacks.integrations.late_callback import Meanwhile, first, move_to_front, settled
from perf_callbacks.integrations.transformers_watch import (
    EVERY_STEP,
    TransformersWatch,
    checkpoint_name,
    find_trainer,
    resumed_from,
)
from perf_callbacks.kernel.failures import fails_open
from perf_callbacks.kernel.fit.item import Batches
from perf_callbacks.kernel.fit.place import Place, data_parallel
from perf_callbacks.kernel.fit.recorder import log
from perf_callbacks.kernel.fit.setup import Setup
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.session import Measures, Session

__all__ = ["PerfCallback"]

STATE_KEY = "perf_callbacks"
"""Key under which 0.1 kept our counters in `TrainerState.stateful_callbacks`, and so in `trainer_state.json`."""

_hook: Callable[[Callable[..., None]], Callable[..., None]] = fails_open
"""A hook of ours never ends the run."""


class PerfCallback(Measures, TrainerCallback):
    """Measures what each optimizer step does with its time, and logs it beside the loss.

    Metrics named `perf/*` join every training row: in `state.log_history`, `trainer_state.json`, and the loggers that
    `report_to` names; the console shows five of them. A row covers the steps since the row before it, without the first
    step and without those in which an evaluation or a checkpoint fell; the last line of a run (`train_runtime`) has the
    averages over all of them, `perf/run/*`.

    While `train` runs, methods of the trainer, its accelerator and its optimizer are replaced on these objects to see
    the stages. They are put back when `train` ends, however it ends. Of two in one trainer only one measures.
    """

    elsewhere = "Lightning's Trainer, take perf_callbacks.lightning.PerfCallback"

    def __init__(self, config: PerfConfig | None = None, **strays: NoReturn) -> None:
        self._session = Session(config, tqdm.write, strays=strays)
        self._blind = False

    def __getstate__(self) -> dict[str, Any]:
        """Copies, and processes that are spawned, measure for themselves."""
        return {name: value for name, value in self.__dict__.items() if name not in EVERY_STEP}

    @_hook
    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        trainer = find_trainer(self, Trainer)
        if trainer is not None:
            move_to_front(trainer.callback_handler.callbacks, self)  # before the loggers, which log what we add

    @_hook
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._session.end("another fit began")
        trainer = find_trainer(self, Trainer)
        if trainer is None:
            log.warning("perf_callbacks found no Trainer around it: step time only, and not every logger may get it.")
            self.begin(args, state, None)
            return
        if first(trainer.callback_handler.callbacks, PerfCallback) is not self:
            if not self.armed:
                log.warning("perf_callbacks: another PerfCallback measures this trainer, this one does nothing.")
            return
        # Other callbacks go first: if one of them raises, nothing of ours is in place yet. The handler is iterating
        # over its list right now, so what is appended to that comes last; what it finds in its place is without it.
        handler = trainer.callback_handler
        move_to_front(handler.callbacks, self)
        handler.callbacks = Meanwhile(handler.callbacks, _Afterwards(self, trainer))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._session.recorder is not None and self._blind:  # it fails open by itself
            self._session.recorder.end_step(state.global_step)

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
        if "train_runtime" in logs:
            metrics = recorder.whole(state.global_step)
        elif "loss" in logs:
            metrics = recorder.row(state.global_step)
        else:
            return
        # The trainer has put a copy into its history already; what goes to the loggers after us is `logs`.
        logs.update(metrics or {})
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(metrics or {})

    @_hook
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._note("evaluation")

    @_hook
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._note("checkpoint")

    @_hook
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._session.end()
        self._session.show_summary()

    def _note(self, kind: str) -> None:
        """Without a trainer to watch, a span is only seen when it is over. It still keeps its step out of the rows."""
        if self._session.recorder is not None and self._blind:
            self._session.recorder.begin_span(kind)
            self._session.recorder.end_span()

    def begin(self, args: TrainingArguments, state: TrainerState, trainer: Trainer | None) -> None:
        """Start measuring: called by the hooks, once the other callbacks have begun."""
        self._blind = trainer is None
        self._session.begin(
            _place(args, state, trainer),
            functools.partial(TransformersWatch, trainer, self, kind=PerfCallback, base=TrainerCallback),
            None if trainer is None else trainer.model,
            lambda _: _batches(args, state, trainer),
            setup=lambda: _setup(args, trainer),
        )


class ArmedCallback(PerfCallback):
    """The callback that every trainer gets in a program that is armed from outside."""

    armed = True


class _Afterwards(TrainerCallback):
    """Comes last in one `on_train_begin`."""

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


def _place(args: TrainingArguments, state: TrainerState, trainer: Trainer | None) -> Place:
    return Place(
        door="transformers",
        directory=Path(args.output_dir or "."),
        device=args.device,
        rank=args.process_index,
        world_size=args.world_size,
        devices=max(1, args.n_gpu),
        data_parallel=data_parallel(trainer.accelerator) if trainer is not None else None,
        step=state.global_step,
        versions={"transformers": transformers.__version__, "accelerate": accelerate.__version__},
        carried=_carried(args, state, trainer),
        staged=trainer is not None,
    )


def _carried(args: TrainingArguments, state: TrainerState, trainer: Trainer | None) -> dict[str, Any] | None:
    """Read the counters of the checkpoint that the trainer resumes from, and leave none in the trainer's state."""
    kept: Any = state.stateful_callbacks
    old = kept.pop(STATE_KEY, None) if isinstance(kept, dict) else None
    if not state.global_step:
        return None
    directory = resumed_from(trainer) or Path(args.output_dir or ".", checkpoint_name(state))
    return saved_counters.read(directory, 0) or (old or {}).get("attributes")


def _setup(args: TrainingArguments, trainer: Trainer | None) -> Setup:
    every = int(args.logging_steps) if args.logging_strategy == "steps" and args.logging_steps >= 1 else None
    if trainer is None:
        return Setup(log_every=every)
    loaders, nan_filter = (trainer.callback_handler.train_dataloader,), bool(args.logging_nan_inf_filter)
    return Setup(optimizers=(trainer.optimizer,), loaders=loaders, log_every=every, nan_filter=nan_filter)


def _batches(args: TrainingArguments, state: TrainerState, trainer: Trainer | None) -> Batches:
    """A resumed fit skips batches by loaders of accelerate's that forget how to copy."""
    if trainer is None:
        return Batches(pinned=args.dataloader_pin_memory, workers=args.dataloader_num_workers)
    aside = bool(getattr(trainer.accelerator, "non_blocking", False)) and not state.global_step
    copy = accelerate.data_loader, "send_to_device"
    return Batches(
        pinned=args.dataloader_pin_memory,
        copied_aside=aside,
        copy=copy,
        devices=max(1, args.n_gpu),
        workers=args.dataloader_num_workers,
    )
