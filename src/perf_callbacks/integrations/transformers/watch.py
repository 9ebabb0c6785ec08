"""Watched calls of a Hugging Face trainer, which show its stages and steps."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from transformers import Trainer, TrainerCallback

from perf_callbacks.integrations import methods, saved_counters
from perf_callbacks.kernel.batches.waiting import untrained
from perf_callbacks.kernel.engine.account import GENERATION, REWARDS
from perf_callbacks.kernel.engine.marks import END
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.fit.logged_metrics import hidden
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.process.backward import BACKWARDS, Loop
from perf_callbacks.kernel.process.stacks import callers

T = TypeVar("T")

EVERY_STEP = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end")
"""Hooks that the trainer calls in every step. In `PerfCallback`, these hooks do nothing."""

READS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler")
"""Methods of a trainer that read a checkpoint before `on_train_begin`."""

_NOTHING: Any = (0).__init__  # type: ignore[misc]
"""Function in C that takes any arguments and returns None.

A Python function would be slower, because it would put the ten arguments of each call into a dictionary.
"""

TRL = {"_generate": GENERATION, "_calculate_rewards": REWARDS}
"""Maps methods of TRL's online trainers to parts of the stage `other`. The time in a method is added to its part."""

CONSOLES = {"PrinterCallback", "ProgressCallback", "NotebookProgressCallback", "RichProgressCallback"}
"""Names of the callbacks of transformers and TRL that show the logs on a console."""


class TransformersWatch:
    """Records the stages, batches, steps, evaluations and checkpoints of a Hugging Face trainer.

    Args:
        trainer: The trainer.
        callback: The callback that measures.
        recorder: The recorder of the fit.
    """

    def __init__(self, trainer: Trainer, callback: TrainerCallback, recorder: Recorder) -> None:
        self._trainer, self._callback, self._recorder = trainer, callback, recorder

    def install(self) -> None:
        """Install all wrappers. Closing the fit's recorder removes all wrappers.

        The trainer fetches all micro-batches of a step in `get_batch_samples`, even before the call of `on_step_begin`.
        """
        trainer, recorder = self._trainer, self._recorder
        handler, accelerator = trainer.callback_handler, trainer.accelerator
        ends_fit = not hasattr(trainer, "_run_epoch")  # transformers < 5 has no method around all steps of an epoch
        for owner, name in _outermost(trainer):
            methods.exits(recorder, owner, name, last=name == "_finalize_training")
        methods.stages(recorder, trainer, "get_batch_samples", Stage.DATA, ends_fit=ends_fit)
        methods.stages(recorder, trainer, "compute_loss", Stage.FORWARD)
        if _slices(trainer):
            if ends_fit:
                methods.exits(recorder, trainer, "training_step")
            methods.batches(recorder, trainer, "compute_loss", argument=2)
        else:
            methods.batches(recorder, trainer, "training_step", argument=2, ends_fit=ends_fit)
            if _redefines(trainer, "training_step"):
                self._watch_skips()
        methods.stages(recorder, accelerator, "backward", Stage.BACKWARD)
        methods.stages(recorder, accelerator, "clip_grad_norm_", Stage.OPTIMIZER, ends_fit=ends_fit)
        # After the optimizer's step come `on_optimizer_step`, the scheduler and `zero_grad`.
        methods.turns(recorder, trainer.optimizer, "step", Stage.OPTIMIZER, ends_fit=ends_fit)
        if any(_overrides(callback, "on_optimizer_step") for callback in handler.callbacks):
            methods.stages(recorder, handler, "on_optimizer_step", Stage.OTHER, then=Stage.OPTIMIZER)
        self._end_steps(handler)
        for console in [one for one in handler.callbacks if CONSOLES & {kind.__name__ for kind in type(one).__mro__}]:
            recorder.patches.method(
                console, "on_log", functools.partial(_shown, recorder.config.console, recorder.logged.names)
            )
        for name, part in TRL.items():
            if hasattr(trainer, name):
                methods.others(recorder, trainer, name, part)
        self._watch_spans()

    def _watch_spans(self) -> None:
        recorder, trainer, handler = self._recorder, self._trainer, self._trainer.callback_handler
        for name in ("evaluate", "predict"):
            methods.spans(recorder, trainer, name, "evaluation")
        methods.spans(recorder, trainer, "save_model", "checkpoint", after=self._carry)
        methods.spans(recorder, trainer, "_save_checkpoint", "checkpoint")
        if any(_overrides(callback, "on_save") for callback in handler.callbacks):  # called after `_save_checkpoint`
            methods.spans(recorder, handler, "on_save", "checkpoint")

    def _watch_skips(self) -> None:
        """Remove a batch from its step if the program's own `training_step` runs neither `compute_loss` nor a backward.

        A batch with `compute_loss` but without a backward keeps its FLOPs, and has no samples. Its samples count if the
        fit had no backward yet: training of zeroth order needs none.
        """
        recorder, trainer, passes = self._recorder, self._trainer, _Passes(self._recorder)
        recorder.patches.add(functools.partial(BACKWARDS.release, passes))
        BACKWARDS.join(passes)
        recorder.patches.method(trainer, "compute_loss", functools.partial(methods.around, before=passes.forward))
        recorder.patches.method(
            trainer, "training_step", functools.partial(methods.around, before=passes.begin, after=passes.end)
        )

    def _end_steps(self, handler: Any) -> None:
        """End each step when the trainer is about to call `on_step_end` of its callbacks."""
        recorder, callback = self._recorder, self._callback
        engine, observers, tape, clock = recorder.engine, recorder.observers, recorder.tape, recorder.clock

        def make(inner: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(inner)
            def call(handler: Any, args: Any, state: Any, *rest: Any, **kwargs: Any) -> Any:
                try:
                    step, now = state.global_step, clock()
                    if step < observers.due and now < engine.flush_at:  # as `Recorder.end_step`, without its frame
                        engine.ended.append((step, engine.excluded, engine.batches))
                        tape.write((END, now))
                        engine.step, engine.excluded, engine.batches = step, None, []
                    else:
                        recorder.end_step(step)
                except Exception as error:  # noqa: BLE001 an observer never ends the run
                    recorder.fail(error)
                return inner(handler, args, state, *rest, **kwargs)

            return call

        self._recorder.patches.method(handler, "on_step_end", make)
        for name in EVERY_STEP:
            if hasattr(TrainerCallback, name) and not _overrides(callback, name):
                self._recorder.patches.replace(callback, name, lambda _: _NOTHING)

    def _carry(self, directory: object) -> None:
        """Write the fit's counters into a checkpoint directory in which the trainer has just saved the model."""
        if isinstance(directory, str | os.PathLike) and self._recorder.run.rank == 0:
            path = Path(directory)
            if path.name == checkpoint_name(self._trainer.state) and path.is_dir():
                saved_counters.write(path, 0, self._recorder.state)


class _Passes(Loop):
    """Notes whether a call of `training_step` ran `compute_loss` and a backward. It writes no marks."""

    marks_backward = False

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder.tape, recorder.clock, recorder.fail)
        self.engine, self._earlier = recorder.engine, 0
        self._differentiates = False  # until the first backward

    def begin(self) -> None:
        self.ran, self.backed, self._earlier = False, False, len(self.engine.batches)

    def forward(self) -> None:
        self.ran = True

    def begins_backward(self, root: object = None) -> None:  # noqa: ARG002 the loss doesn't matter
        self.backed = self._differentiates = True

    def ends_backward(self) -> None: ...

    def builds_graph(self) -> None: ...

    def end(self, _loss: object) -> None:
        batches = self.engine.batches
        if len(batches) > self._earlier and not self.backed and (self._differentiates or not self.ran):
            batches[-1:] = [untrained(batches[-1])] if self.ran else []


def _shown(console: str, ours: set[str], inner: Callable[..., T]) -> Callable[..., T]:
    """Wrap `on_log` of a console callback, in order to remove the metrics that are not meant for the console."""

    @functools.wraps(inner)
    def call(owner: Any, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> T:
        kept = {name: logs.pop(name) for name in hidden([name for name in logs or () if name in ours], console)}
        try:
            return inner(owner, args, state, control, logs=logs, **kwargs)
        finally:
            if kept:
                logs.update(kept)

    return call


def _slices(trainer: object) -> bool:
    """Return True if the trainer prepares its inputs itself, as TRL's online trainers do.

    The loader of such a trainer yields the prompts of several micro-batches at once. The trainer passes one micro-batch
    to each call of `compute_loss`.
    """
    return _redefines(trainer, "_prepare_inputs")


def _redefines(trainer: object, method: str) -> bool:
    """Return True if a class outside of transformers defines this method of the trainer."""
    owner = next((kind for kind in type(trainer).__mro__ if method in vars(kind)), Trainer)
    return not owner.__module__.startswith("transformers.")


def _overrides(callback: object, hook: str) -> bool:
    """Return True if a callback overrides a hook of its base class `TrainerCallback`."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(TrainerCallback, hook)


def _outermost(trainer: Any) -> list[tuple[Any, str]]:
    """Return methods whose exceptions end the training loop. Transformers has no hook for exceptions.

    Before version 5, transformers has no single method for all steps of an epoch. Before version 5, `install` watches
    the exceptions of further methods, such as `get_batch_samples`.
    """
    if hasattr(trainer, "_run_epoch"):
        loop = ("_run_epoch", "_evaluate", "_finalize_training")
        return [*((trainer, name) for name in loop), (trainer.callback_handler, "on_epoch_begin")]
    names = ("floating_point_ops", "_maybe_log_save_evaluate", "_evaluate", "log", "_load_best_model")
    return [*((trainer, name) for name in names), (trainer.callback_handler, "call_event")]


def find_trainer(callback: object) -> Trainer | None:
    """Find the trainer of a running hook on the call stack, because transformers passes no trainer to hooks."""
    for frame in callers():
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer) and callback in trainer.callback_handler.callbacks:
            return trainer
    return None


def resumed_from(trainer: object) -> Path | None:
    """Return the path of the checkpoint from which a trainer resumes, or None if the path isn't found.

    The function searches the call stack, because no attribute of the trainer holds the path.
    """
    for frame in callers():
        found = frame.f_locals.get("resume_from_checkpoint")
        if isinstance(found, str | os.PathLike) and frame.f_locals.get("self") is trainer:
            return Path(found)
    return None


def checkpoint_name(state: Any) -> str:
    """Return the name of the trainer's checkpoint directory at the current step, such as `checkpoint-500`."""
    return f"checkpoint-{state.global_step}"
