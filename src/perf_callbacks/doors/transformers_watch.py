"""The calls of a Hugging Face trainer and its parts that tell of stages and steps."""

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from perf_callbacks.core.account import GENERATION, REWARDS
from perf_callbacks.core.stages import Stage
from perf_callbacks.doors import methods
from perf_callbacks.session.recorder import Recorder

T = TypeVar("T")

TRL = {"_generate": GENERATION, "_calculate_rewards": REWARDS}
"""Methods of TRL's trainers for online reinforcement learning, and the parts of the stage `other` that they are."""


class TransformersWatch:
    """Tells a recorder what a trainer does. Without a trainer in sight there is nothing to watch.

    Args:
        trainer: The trainer that trains; None where it was not found.
        callback: The callback that measures.
        recorder: Hears of stages, batches, steps and spans.
        state_key: Where the counters stand in `TrainerState.stateful_callbacks`.
        kind: The class of the callback: it does nothing at the end of a step, unless a subclass does.
        base: The framework's own class of callbacks, whose hooks do nothing.
    """

    def __init__(
        self, trainer: Any, callback: Any, recorder: Recorder, *, state_key: str, kind: Any, base: Any
    ) -> None:
        self._trainer, self._callback, self._recorder = trainer, callback, recorder
        self._state_key, self._kind, self._base = state_key, kind, base

    def install(self) -> None:
        """Watch the stages. All micro-batches of a step are fetched before `on_step_begin`."""
        trainer, recorder = self._trainer, self._recorder
        if trainer is None:
            return
        handler, accelerator = trainer.callback_handler, trainer.accelerator
        ends_fit = not hasattr(trainer, "_run_epoch")  # transformers < 5 has no method around all steps of an epoch
        for owner, name in _outermost(trainer):
            methods.exits(recorder, owner, name, last=name == "_finalize_training")
        methods.stages(recorder, trainer, "get_batch_samples", Stage.DATA, ends_fit=ends_fit)
        methods.batches(recorder, trainer, "training_step", argument=2, ends_fit=ends_fit)
        methods.stages(recorder, trainer, "compute_loss", Stage.FORWARD)
        methods.stages(recorder, accelerator, "backward", Stage.BACKWARD)
        methods.stages(recorder, accelerator, "clip_grad_norm_", Stage.OPTIMIZER, ends_fit=ends_fit)
        # The optimizer's step is followed by `on_optimizer_step`, and this by the scheduler and `zero_grad`.
        methods.stages(recorder, trainer.optimizer, "step", Stage.OPTIMIZER, then=Stage.OPTIMIZER, ends_fit=ends_fit)
        if any(_overrides(callback, "on_optimizer_step", self._base) for callback in handler.callbacks):
            methods.stages(recorder, handler, "on_optimizer_step", Stage.OTHER, then=Stage.OPTIMIZER)
        self._end_steps(handler)
        for name, part in TRL.items():
            if hasattr(trainer, name):
                methods.others(recorder, trainer, name, part)
        for name in ("evaluate", "predict"):
            methods.spans(recorder, trainer, name, "evaluation")
        methods.spans(recorder, trainer, "save_model", "checkpoint")
        methods.spans(recorder, trainer, "_save_checkpoint", "checkpoint", first=self._carry)

    def _end_steps(self, handler: Any) -> None:
        """End a step when the handler begins to tell callbacks of it, before any of them is told."""
        end_step, callback, kind = self._recorder.end_step, self._callback, self._kind

        def make(inner: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(inner)
            def call(handler: Any, args: Any, state: Any, *rest: Any, **kwargs: Any) -> Any:
                end_step(state.global_step)
                return inner(handler, args, state, *rest, **kwargs)

            return call

        self._recorder.patches.method(handler, "on_step_end", make)
        if not _overrides(callback, "on_step_end", kind):  # that of its base class does nothing
            nothing = self._base.on_step_end.__get__(callback)
            self._recorder.patches.replace(callback, "on_step_end", lambda _: nothing)

    def _carry(self, recorder: Recorder) -> None:
        """Put our counters where the checkpoint takes them along. `ExportableState` would end a resumed run instead."""
        saved: Any = self._trainer.state.stateful_callbacks
        if isinstance(saved, dict):
            saved[self._state_key] = {"args": {}, "attributes": recorder.state}


def _overrides(callback: object, hook: str, kind: Any) -> bool:
    """Tell whether a callback has a hook of its own."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(kind, hook)


def _outermost(trainer: Any) -> list[tuple[Any, str]]:
    """List what the training loop calls, so that an exception is seen: there is no hook for one.

    In transformers < 5 it also calls what is watched in any case.
    """
    if hasattr(trainer, "_run_epoch"):
        loop = ("_run_epoch", "_evaluate", "_finalize_training")
        return [*((trainer, name) for name in loop), (trainer.callback_handler, "on_epoch_begin")]
    names = ("floating_point_ops", "_maybe_log_save_evaluate", "_evaluate", "log", "_load_best_model")
    return [*((trainer, name) for name in names), (trainer.callback_handler, "call_event")]


def find_trainer(callback: object, kind: type[T]) -> T | None:
    """Find the trainer that is calling: callbacks are not told."""
    # Not from our own frame on: its locals would refer to itself, and keep all frames with their trainer alive.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 the one way to the caller
    while frame is not None:
        trainer = candidate = frame.f_locals.get("self")
        if isinstance(candidate, kind) and trainer is not None and callback in trainer.callback_handler.callbacks:
            return candidate
        frame = frame.f_back
    return None
