"""The door for a loop of one's own with Hugging Face Accelerate.

from perf_callbacks.accelerate import attach

accelerator = Accelerator(...)
attach(accelerator)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import accelerate  # type: ignore[import-untyped]
from accelerate import Accelerator

from perf_callbacks.integrations.accelerate_fits import Fits
from perf_callbacks.integrations.accelerate_methods import install, take_over
from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.fit.item import Batches
from perf_callbacks.kernel.fit.place import Place, data_parallel
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.settings.config import ConfigError, PerfConfig, kind
from perf_callbacks.session import Session, checked

__all__ = ["Attachment", "attach"]


def attach(
    accelerator: Accelerator,
    config: PerfConfig | None = None,
    *,
    resume: Mapping[str, Any] | None = None,
    **strays: NoReturn,
) -> "Attachment":
    """Measure the loop that is run with this accelerator; nothing else in it changes.

    Call it before `accelerator.prepare(...)`. A step ends where the first prepared optimizer really steps, so
    accumulation and skipped steps are counted as they are. Metrics named `perf/*` join the values of each
    `accelerator.log(...)`: they cover the steps since the one before.

    Data is the time in `next` of any prepared loader, the copy to the device included. Forward begins with the call of
    a prepared model and lasts until the backward, so it holds the loss. Optimizer holds clipping, the prepared
    scheduler and `zero_grad`. What is fetched or called while the model is in evaluation mode is an evaluation, which
    lasts until there is training again; `save_state`, `save_model`, `save` and `get_state_dict` are checkpoints.
    Neither is part of any step, and the step in which one falls is in no row.

    Measuring begins with the first batch or backward of training, and ends with `accelerator.end_training()`,
    `free_memory()`, `close()` of what is returned here, or when the accelerator is freed. All changes are undone then.
    `save_state` and `load_state` take the counters along.

    The accelerator, its loaders and schedulers get a subclass of their class meanwhile. They are held weakly, and copy
    and pickle as before.

    Args:
        accelerator: Whose loop to measure. Attached to before, the newcomer takes over.
        config: What to measure; the environment overrules it.
        resume: `state()` as it was saved, where checkpoints are not left to `save_state`.
        strays: Nothing; settings go into `config`.
    """
    if isinstance(accelerator, type) or not hasattr(accelerator, "prepare"):
        raise ConfigError(
            f"accelerator: got {kind(accelerator)}, wanted an accelerate.Accelerator, as Accelerator() makes it."
        )
    checked(config, strays, "attach(accelerator, PerfConfig({}))")
    return Attachment(accelerator, config, resume)


def attach_armed(accelerator: Accelerator) -> None:
    """Attach to an accelerator of a program that is armed from outside.

    The program doesn't know of it: if it trains nothing with this accelerator, it hears nothing, and if it never calls
    `end_training()`, the table is printed when the accelerator is freed or the program ends. `attach` takes over.
    """
    Attachment(accelerator, armed=True)


class Attachment:
    """The measurement that is attached to an accelerator."""

    def __init__(
        self,
        accelerator: Accelerator,
        config: PerfConfig | None = None,
        resume: Mapping[str, Any] | None = None,
        *,
        armed: bool = False,
    ) -> None:
        self._session = Session(config)
        self._fits = Fits(self._session, accelerator, _place, resume, _batches, armed=armed)
        take_over(accelerator)
        if self._fits.active:
            try:
                install(accelerator, self._fits)
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                self._fits.fail(error)

    def __enter__(self) -> "Attachment":  # noqa: PYI034 Python 3.10 has no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if error is None else describe(error))

    @property
    def summary(self) -> Summary | None:
        """The current fit so far, or the last one. None before the first."""
        return self._session.summary

    def state(self) -> dict[str, Any]:
        """State to save with a checkpoint, for `attach(resume=…)`, where it is not left to `save_state`."""
        return self._fits.state

    def close(self, failure: str | None = None) -> None:
        """Stop measuring and put everything back. Twice is once."""
        self._fits.close(failure)


def _place(accelerator: Accelerator, carried: Mapping[str, Any] | None) -> Place:
    return Place(
        door="accelerate",
        directory=Path(accelerator.project_dir or "."),
        device=accelerator.device,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        data_parallel=data_parallel(accelerator),
        step=int((carried or {}).get("step", 0)),
        versions={"accelerate": accelerate.__version__},
        carried=carried,
    )


def _batches(loaders: tuple[Any, ...]) -> Batches:
    """Loaders that skip batches, as after a resume, forget how they were told to copy."""
    return Batches(
        pinned=True if loaders and all(getattr(loader, "pin_memory", False) for loader in loaders) else None,
        copied_aside=False,
        loaders=loaders,
        copy=(accelerate.data_loader, "send_to_device"),
    )
