"""Measurement that is attached to an accelerator."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

from accelerate import Accelerator  # type: ignore[import-untyped]

from perf_callbacks.integrations.accelerate.accelerator_methods import install, take_over
from perf_callbacks.integrations.accelerate.accelerator_session import AcceleratorSession
from perf_callbacks.kernel.failures import describe, guard
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.settings.config import ConfigError, PerfConfig, kind
from perf_callbacks.session import Session, checked


def attach(
    accelerator: Accelerator,
    config: PerfConfig | None = None,
    *,
    resume: Mapping[str, Any] | None = None,
    **strays: NoReturn,
) -> "Attachment":
    """Measure the loop that uses this accelerator, without other changes to the loop.

    Call `attach` before `accelerator.prepare(...)`. A step ends when the first prepared optimizer updates the weights,
    so accumulated micro-batches share a step, and a skipped step doesn't count. Metrics named `perf/*` join the values
    of each `accelerator.log(...)` and cover the steps since the previous call.

    Data is the time in `next` of any prepared loader, including the copy to the device. Forward begins with the call of
    a prepared model and lasts until the backward, so it includes the loss. Optimizer includes clipping, the prepared
    scheduler and `zero_grad`. Batches fetched and models called in evaluation mode belong to an evaluation, which lasts
    until training resumes. `save_state`, `save_model`, `save` and `get_state_dict` are checkpoints. Evaluations and
    checkpoints are part of no step, and rows leave out a step with an evaluation or a checkpoint.

    Measuring begins with the first batch or backward of training. `free_memory()` ends it until training begins with
    newly prepared objects. `accelerator.end_training()`, or `close()` of the returned attachment, ends it for good and
    undoes all changes, and so does freeing the accelerator. `save_state` and `load_state` save and load the counters.

    Until measuring ends, the accelerator, its loaders and schedulers have a subclass of their class. The callback holds
    these objects weakly, and their copies and pickles have the original class.

    Args:
        accelerator: The accelerator whose loop to measure. A second `attach` takes over from the first.
        config: The settings. Environment variables override these settings.
        resume: The saved `state()`, for checkpoints that `save_state` doesn't write.
        strays: Not accepted. Settings go into `config`.
    """
    if isinstance(accelerator, type) or not hasattr(accelerator, "prepare"):
        raise ConfigError(
            f"accelerator: got {kind(accelerator)}, wanted an accelerate.Accelerator, as Accelerator() makes it."
        )
    checked(config, strays, "attach(accelerator, PerfConfig({}))")
    return Attachment(accelerator, config, resume)


class Attachment:
    """Measurement that is attached to an accelerator.

    If `armed`, a launcher attached the measurement, not the program's code. Then a program without training logs
    nothing. If the program never calls `end_training()`, the table is printed when the accelerator is freed or the
    program ends. A later `attach` takes over.
    """

    __module__ = "perf_callbacks.accelerate"  # the name in pickles

    def __init__(
        self,
        accelerator: Accelerator,
        config: PerfConfig | None = None,
        resume: Mapping[str, Any] | None = None,
        *,
        armed: bool = False,
    ) -> None:
        self._session = Session(config, armed=armed)
        self._fits = AcceleratorSession(self._session, accelerator, resume, armed=armed)
        take_over(accelerator)
        if self._fits.active:
            with guard(self._fits.fail):
                install(accelerator, self._fits)

    def __enter__(self) -> "Attachment":  # noqa: PYI034 Python 3.10 has no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if error is None else describe(error))

    @property
    def summary(self) -> Summary | None:
        """Summary of the current fit so far, or of the last fit. None before the first fit."""
        return self._session.summary

    def state(self) -> dict[str, Any]:
        """Return the state to save with a checkpoint, for `attach(resume=…)`. `save_state` saves the same by itself."""
        return self._fits.state

    def close(self, failure: str | None = None) -> None:
        """Stop measuring and undo every change. Idempotent."""
        self._fits.close(failure)
