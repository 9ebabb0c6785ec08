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

    Call `attach` before `accelerator.prepare(...)`. A step ends when the first prepared optimizer updates the weights:
    accumulated micro-batches form one step, and a skipped update is none. Each `accelerator.log(...)` also logs metrics
    named `perf/*`, of the steps since the previous one. The stage `data` is the time in `next` of any prepared loader,
    with the copy to the device; `forward` lasts from the call of a prepared model to the backward, with the loss;
    `optimizer` includes gradient clipping, `zero_grad` and the step of a prepared scheduler.

    An evaluation begins when the loop fetches a batch while gradients are disabled or no model is in training mode, or
    calls a model in evaluation mode without gradients. It ends when training resumes. `save_state`, `save_model`,
    `save` and `get_state_dict` count as checkpoints. The metrics leave out every step with either.

    Measuring begins with the first batch or backward of training, pauses after `accelerator.free_memory()` until the
    loop trains with newly prepared objects, and ends with `accelerator.end_training()`, `close()` of the attachment, or
    the accelerator itself, which isn't kept alive. All changes are then undone. Until then, the accelerator and its
    loaders and schedulers are instances of a subclass; their copies and pickles have the original class.

    Args:
        accelerator: A second call of `attach` for it ends the first measurement.
        config: The settings. Environment variables override them.
        resume: Saved result of `state()`. Checkpoints of `save_state` don't need it.
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

    `armed` by a launcher, it logs no warning if the program never trains, and without `end_training()` prints the
    closing card when the accelerator is freed or the program ends.
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
