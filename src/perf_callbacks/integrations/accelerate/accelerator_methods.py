"""Watched methods of an accelerator: each replacement informs the session and calls the original method."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from perf_callbacks.integrations.accelerate.accelerator_session import AcceleratorSession
from perf_callbacks.integrations.accelerate.subclasses import put_on, watched
from perf_callbacks.integrations.methods import around
from perf_callbacks.kernel.engine.marks import BACK, BEGIN
from perf_callbacks.kernel.engine.stages import Stage

ATTRIBUTE = "_perf_callbacks"  # attribute of the accelerator that holds its `AcceleratorSession`

PREPARING = (
    "prepare",
    "prepare_model",
    "prepare_optimizer",
    "prepare_data_loader",
    "prepare_scheduler",
    "skip_first_batches",
)

PREPARED = ("_models", "_optimizers", "_schedulers", "_dataloaders")

T = TypeVar("T")


def install(accelerator: Any, fits: AcceleratorSession) -> None:
    kind = type(accelerator)
    members: dict[str, Any] = {ATTRIBUTE: fits}
    for name, make in _watched_methods(fits).items():
        if name in vars(accelerator):  # set on the object by other code, which hides the class's method
            fits.patches.method(accelerator, name, make)
        elif hasattr(kind, name):
            members[name] = make(getattr(kind, name))
    fits.kind = watched(kind, members)
    fits.patches.add(put_on(accelerator, fits.kind))
    for name in PREPARED:  # objects prepared before we attached
        fits.see(tuple(getattr(accelerator, name, ())))


def _watched_methods(fits: AcceleratorSession) -> dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    return {
        **dict.fromkeys(PREPARING, functools.partial(around, after=fits.see)),
        "backward": functools.partial(_training, fits),
        "log": functools.partial(_logging, fits),
        "save_state": functools.partial(_noting, "register_save_state_pre_hook", fits.save),
        "load_state": lambda inner: _noting("register_load_state_pre_hook", fits.load, fits.restoring.timed(inner)),
        **dict.fromkeys(("free_memory", "clear"), functools.partial(around, before=fits.free)),
        "end_training": functools.partial(around, before=fits.close),
    }


def _training(fits: AcceleratorSession, inner: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> T:
        if fits.watch is None:
            fits.begin()
        return inner(*args, **kwargs) if fits.watch is None else fits.watch.backward(inner, *args, **kwargs)

    return call


def _logging(fits: AcceleratorSession, inner: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(inner)
    def call(accelerator: Any, values: Any, *args: Any, **kwargs: Any) -> T:
        if fits.watch is None:
            return inner(accelerator, values, *args, **kwargs)
        enter = fits.watch.recorder.enter
        enter(BEGIN[Stage.OTHER])
        fits.logged_step = args[0] if args else kwargs.get("step")
        try:
            metrics = fits.row() if isinstance(values, Mapping) else None
            return inner(accelerator, {**values, **metrics, **values} if metrics else values, *args, **kwargs)
        finally:
            enter(BACK)

    return call


def _noting(register: str, use: Callable[[Path], object], inner: Callable[..., T]) -> Callable[..., T]:
    """Nothing is registered for checkpointing: accelerate could not load a checkpoint without it."""

    @functools.wraps(inner)
    def call(accelerator: Any, *args: Any, **kwargs: Any) -> T:
        noted: list[Any] = []
        hook = getattr(accelerator, register)(lambda *arguments: noted.append(arguments[-1]))
        try:
            result = inner(accelerator, *args, **kwargs)
        finally:
            hook.remove()
        for directory in noted:
            use(Path(directory))
        return result

    return call
