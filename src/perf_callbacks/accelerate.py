"""The door for a loop of one's own with Hugging Face Accelerate.

from perf_callbacks.accelerate import attach

accelerator = Accelerator(...)
attach(accelerator)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""

import functools
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import accelerate  # type: ignore[import-untyped]
import torch
from accelerate import Accelerator

from perf_callbacks._accelerate import AcceleratedWatch
from perf_callbacks._prepared import Prepared
from perf_callbacks.core.config import PerfConfig
from perf_callbacks.core.records import Summary
from perf_callbacks.core.settings import resolve
from perf_callbacks.host import counters
from perf_callbacks.host.patches import Patches
from perf_callbacks.host.place import Place
from perf_callbacks.host.recorder import Recorder, describe, log
from perf_callbacks.report import text

__all__ = ["Attachment", "attach"]

ATTRIBUTE = "_perf_callbacks"
"""Under this name an accelerator knows what is attached to it."""

TAKEN_OVER = "another attach(accelerator) took over"

PREPARING = (
    "prepare",
    "prepare_model",
    "prepare_optimizer",
    "prepare_data_loader",
    "prepare_scheduler",
    "skip_first_batches",
)
"""What hands out something prepared."""

PREPARED = ("_models", "_optimizers", "_schedulers", "_dataloaders")
"""Where an accelerator keeps what it has prepared."""

_attached: "weakref.WeakSet[Attachment]" = weakref.WeakSet()

P = ParamSpec("P")
T = TypeVar("T")


def attach(
    accelerator: Accelerator, config: PerfConfig | None = None, *, resume: Mapping[str, Any] | None = None
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
    `free_memory()`, or `close()` of what is returned here. Everything is put back then. `save_state` and `load_state`
    take the counters along.

    Args:
        accelerator: Whose loop to measure. Attached to before, the newcomer takes over.
        config: What to measure; the environment overrules it.
        resume: `state()` as it was saved, where checkpoints are not left to `save_state`.
    """
    return Attachment(accelerator, config, resume)


def _fails_open(
    method: "Callable[Concatenate[Attachment, P], T]",
) -> "Callable[Concatenate[Attachment, P], T | None]":
    """What goes wrong in here ends the measuring and nothing else."""

    @functools.wraps(method)
    def call(self: "Attachment", /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        if not self.attached:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)
            return None

    return call


class Attachment:
    """What is attached to an accelerator: measures one fit after the other."""

    def __init__(
        self, accelerator: Accelerator, config: PerfConfig | None = None, resume: Mapping[str, Any] | None = None
    ) -> None:
        self._settings = resolve(config, os.environ)
        for remark in self._settings.remarks:
            log.warning("perf_callbacks: %s", remark)
        self._accelerator = accelerator
        self._carried = None if resume is None else dict(resume)
        self._state = dict(resume or {})
        self._patches = Patches()
        self._prepared = Prepared(self)
        self._recorder: Recorder | None = None
        self._watch: AcceleratedWatch | None = None
        self.attached = self._settings.config.enabled
        """Whether it measures, or will: not once it is closed, failed, or where the configuration says so."""
        self._install()

    def __enter__(self) -> "Attachment":  # noqa: PYI034 Python 3.10 has no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if error is None else describe(error))

    @property
    def summary(self) -> Summary | None:
        """The current fit so far, or the last one. None before the first."""
        return self._recorder.summary if self._recorder is not None else None

    def state(self) -> dict[str, Any]:
        """What to save with a checkpoint, for `attach(resume=…)`, where it is not left to `save_state`."""
        return dict(self._state) if self._watch is None else self._watch.recorder.state

    @_fails_open
    def close(self, failure: str | None = None) -> None:
        """Stop measuring and put everything back. Twice is once."""
        if self._recorder is None and failure is None:
            log.warning(
                "perf_callbacks measured nothing: call attach(accelerator) before accelerator.prepare(...), and "
                "prepare the model and its optimizer with that accelerator."
            )
        self._finish(failure)
        self._detach()

    def fail(self, error: Exception) -> None:
        """Something of ours went wrong: say so once, stop measuring, put everything back."""
        if self._recorder is not None:
            self._recorder.fail(error)
        else:
            log.warning("perf_callbacks could not begin, training goes on: %s.", describe(error), exc_info=error)
        self._detach()

    @_fails_open
    def fetch(self, loader: object) -> None:
        """The loop asks a loader for a batch."""
        if self._watch is None and torch.is_grad_enabled() and any(model.training for model in self._prepared.models):
            self._begin()
        if self._watch is not None:
            self._watch.fetch(loader)

    @_fails_open
    def fetched(self, loader: object, batch: object) -> None:
        """A loader has handed over a batch."""
        if self._watch is not None:
            self._watch.fetched(loader, batch)

    @_fails_open
    def exhausted(self) -> None:
        """A loader has no more."""
        if self._watch is not None:
            self._watch.exhausted()

    @_fails_open
    def _install(self) -> None:
        accelerator, replace = self._accelerator, functools.partial(self._patches.replace, self._accelerator)
        earlier = vars(accelerator).get(ATTRIBUTE)
        if earlier is not None:
            earlier.close(TAKEN_OVER)
        setattr(accelerator, ATTRIBUTE, self)
        self._patches.add(functools.partial(vars(accelerator).pop, ATTRIBUTE), self._prepared.forget)
        for name in PREPARING:
            replace(name, functools.partial(_around, after=self._see))
        replace("backward", functools.partial(_around, before=self._begin))
        replace("log", self._logging)
        replace("save_state", functools.partial(self._noting, "register_save_state_pre_hook", self._save))
        replace("load_state", functools.partial(self._noting, "register_load_state_pre_hook", self._load))
        for name in ("free_memory", "clear"):
            replace(name, functools.partial(_around, before=self._free))
        replace("end_training", functools.partial(_around, before=self.close))
        for name in PREPARED:  # before we came
            self._see(tuple(getattr(accelerator, name, ())))

    @_fails_open
    def _see(self, prepared: object) -> None:
        for one in self._prepared.see(prepared):
            if self._watch is not None:
                self._watch.add(one)

    @_fails_open
    def _begin(self) -> None:
        """Training begins. What it takes to measure it has been prepared by now, or it is not ours to measure."""
        if self._watch is not None:
            return
        models, optimizers = self._prepared.models, self._prepared.optimizers
        if not models or not optimizers:
            return
        self._take_over(optimizers[0])
        self._recorder = recorder = Recorder(self._settings, self._place())
        recorder.patches.add(functools.partial(self._ended, recorder))
        self._watch = AcceleratedWatch(recorder, models[0], optimizers[0])
        if recorder.active:
            self._watch.install()
            self._watch.add_accelerator(self._accelerator)
            for one in self._prepared:
                self._watch.add(one)
        if recorder.active and recorder.run.rank == 0:
            print(text.opening(recorder.run, journal=recorder.journal_path))  # noqa: T201 what a person sees

    def _take_over(self, optimizer: Any) -> None:
        """Whoever measured this optimizer before, with an accelerator that is no longer in use, does so no more."""
        for other in [*_attached]:
            if other is not self and other._watch is not None and other._watch.counts(optimizer):  # noqa: SLF001
                other.close(TAKEN_OVER)
        _attached.add(self)

    def _place(self) -> Place:
        accelerator = self._accelerator
        return Place(
            door="accelerate",
            directory=Path(accelerator.project_dir or "."),
            device=accelerator.device,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            step=int((self._carried or {}).get("step", 0)),
            versions={"accelerate": accelerate.__version__},
            carried=self._carried,
        )

    def _logging(self, inner: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(inner)
        def call(values: Any, *args: Any, **kwargs: Any) -> T:
            return inner(
                {**values, **(self._row() or {}), **values} if isinstance(values, dict) else values, *args, **kwargs
            )

        return call

    @_fails_open
    def _row(self) -> dict[str, float] | None:
        return None if self._watch is None else self._watch.recorder.row(self._watch.steps)

    def _noting(self, register: str, use: Callable[[Path], object], inner: Callable[..., T]) -> Callable[..., T]:
        """Do something with the directory of a checkpoint, once accelerate is done with it."""

        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> T:
            noted: list[Any] = []
            hook = getattr(self._accelerator, register)(lambda *arguments: noted.append(arguments[-1]))
            try:
                result = inner(*args, **kwargs)
            finally:
                hook.remove()
            for directory in noted:
                use(Path(directory))
            return result

        return call

    @_fails_open
    def _save(self, directory: Path) -> None:
        state = self.state()
        if state:
            counters.write(directory, self._accelerator.process_index, state)

    @_fails_open
    def _load(self, directory: Path) -> None:
        """Training goes on from another point than it was at: in a fit of its own."""
        if self._watch is not None:
            self._watch.recorder.close()
        self._carried = counters.read(directory, self._accelerator.process_index)
        self._state = dict(self._carried)

    @_fails_open
    def _free(self) -> None:
        """What was trained is let go of; what is prepared next is a fit of its own."""
        self._finish()
        self._carried = None
        self._prepared.forget()

    def _finish(self, failure: str | None = None) -> None:
        if self._watch is None:
            return
        recorder = self._watch.recorder
        recorder.close(failure)
        if failure is None and recorder.run.rank == 0 and recorder.summary is not None:
            print(text.closing(recorder.summary))  # noqa: T201 what a person sees

    def _ended(self, recorder: Recorder) -> None:
        """A recorder has closed. After a failure there is no other."""
        self._watch, self._state = None, recorder.state
        if recorder.failure is not None:
            self._detach()

    def _detach(self) -> None:
        self.attached = False
        self._patches.restore()


def _around(
    inner: Callable[..., T], *, before: Callable[[], object] = int, after: Callable[[T], object] = id
) -> Callable[..., T]:
    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> T:
        before()
        result = inner(*args, **kwargs)
        after(result)
        return result

    return call
