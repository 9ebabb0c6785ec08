"""Measurement that is attached to an accelerator."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

from accelerate import Accelerator  # type: ignore[import-untyped]

from perf_callbacks.integrations.accelerate.accelerator_methods import ATTRIBUTE, install
from perf_callbacks.integrations.accelerate.accelerator_session import TAKEN_OVER, AcceleratorSession
from perf_callbacks.kernel.failures import guard
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
    """Measure the loop that uses this accelerator. Apart from this call, the loop needs no change.

    Call `attach` before `accelerator.prepare(...)`. A step ends when the first prepared optimizer updates the weights.
    Accumulated micro-batches form one step. A skipped update doesn't count as a step. Each `accelerator.log(...)` also
    logs metrics named `perf/*`, which cover the steps since the previous call of `log`.

    The stage `data` is the time in `next` of any prepared loader, including the copy to the device. The stage `forward`
    begins with the call of a prepared model and lasts until the backward, so it includes the loss. The stage
    `optimizer` includes gradient clipping, `zero_grad` and the step of a prepared scheduler.

    An evaluation begins when the loop fetches a batch while gradients are disabled or no model is in training mode. An
    evaluation also begins when the loop calls a model in evaluation mode without gradients. An evaluation ends when
    training resumes. Calls of `save_state`, `save_model`, `save` and `get_state_dict` count as checkpoints. The time of
    evaluations and checkpoints belongs to no step. The metrics leave out every step with an evaluation or a checkpoint.

    Measuring begins with the first batch or backward of training. After `accelerator.free_memory()`, measuring pauses
    until the loop trains with objects that were prepared after this call. `accelerator.end_training()`, or `close()` of
    the returned attachment, ends measuring for good and undoes all changes. Measuring also ends when the accelerator is
    freed. `save_state` and `load_state` also save and load the counters of perf_callbacks, such as the number of steps.

    Until measuring ends, the accelerator and its prepared loaders and schedulers are instances of a subclass of their
    original class. Copies and pickles of these objects have the original class. The measurement doesn't keep the
    accelerator or prepared objects alive.

    Args:
        accelerator: Accelerator that the loop uses. If `attach` is called twice for an accelerator, the second
            call ends the first measurement.
        config: The settings. Environment variables override these settings.
        resume: Saved result of `state()`. Checkpoints of `save_state` don't need `resume`.
        strays: Unknown keyword arguments raise an error. Settings go into `config`.
    """
    if isinstance(accelerator, type) or not hasattr(accelerator, "prepare"):
        raise ConfigError(
            f"accelerator: got {kind(accelerator)}, wanted an accelerate.Accelerator, as Accelerator() makes it."
        )
    checked(config, strays, "attach(accelerator, PerfConfig({}))")
    return Attachment(accelerator, config, resume)


class Attachment:
    """Measurement that is attached to an accelerator.

    `armed` is True if a launcher attached the measurement. Such a measurement logs no warning if the program never
    trains. If the program never calls `end_training()`, such a measurement prints the closing card when the accelerator
    is freed, or when the program ends.
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
        earlier = getattr(type(accelerator), ATTRIBUTE, None)
        if earlier is not None:
            earlier.close(TAKEN_OVER)
        if self._fits.active:
            with guard(self._fits.fail):
                install(accelerator, self._fits)

    def __enter__(self) -> "Attachment":  # noqa: PYI034 Python 3.10 has no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    @property
    def summary(self) -> Summary | None:
        """Summary of the current fit so far, or else of the last fit. None before the first fit."""
        return self._session.summary

    def state(self) -> dict[str, Any]:
        """Return the counters to save with a checkpoint, for `attach(resume=…)`. `save_state` also saves them."""
        return self._fits.state

    def close(self, failure: str | BaseException | None = None) -> None:
        """Stop measuring and undo every change to the accelerator. Idempotent."""
        self._fits.close(failure)
