"""Hooks that both Lightning callbacks share. This module imports neither `lightning` nor `pytorch_lightning`."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from perf_callbacks import checklist
from perf_callbacks.integrations.callback_order import CallbackListCopy, measures, settled
from perf_callbacks.integrations.lightning import options
from perf_callbacks.integrations.lightning.watch import TrainerWatch, steps_done
from perf_callbacks.integrations.restore_time import RestoreTime
from perf_callbacks.kernel.clock import perf_counter
from perf_callbacks.kernel.failures import fails_open, guard
from perf_callbacks.kernel.fit.item import Batches
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.logged_metrics import bar
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.fit.training_objects import TrainingObjects, flat
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.session import CallbackBase, Session

STATE_KEY = "perf_callbacks"
"""Two `PerfCallback` objects would share a key in callback states, and a separate file wouldn't move along."""

EVERY_BATCH = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)
"""Called by the trainer for every batch. In `LightningHooks`, they do nothing."""

READS = ("_restore_modules_and_callbacks", "restore_training_state")
"""Methods of the trainer's checkpoint connector that read a checkpoint, after the hook `setup`."""

LARGE = 100.0  # from here on, the progress bar shows no decimals


class LightningHooks(CallbackBase):
    """Hooks of a `PerfCallback`. A subclass adds the base class `Callback` of one Lightning package."""

    elsewhere = "the Hugging Face Trainer, take perf_callbacks.transformers.PerfCallback"

    def __init__(self, config: PerfConfig | None = None, **strays: NoReturn) -> None:
        self._session = Session(
            config, functools.partial(terminal.show, write=tqdm.write), strays=strays, armed=self.armed
        )
        self._watch: TrainerWatch | None = None
        self._startup: checklist.Startup | None = None
        self._carried: dict[str, Any] | None = None
        self._set_up_at: float | None = None
        self._restoring = RestoreTime()
        self._restore_seconds: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the watch, the replaced hooks, and the method `log` that a trainer sets."""
        kept = {name: value for name, value in self.__dict__.items() if name not in {"log", "log_dict", *EVERY_BATCH}}
        return {**kept, "_watch": None, "_startup": None, "_set_up_at": None, "_restoring": RestoreTime()}

    def fail(self, error: Exception) -> None:
        try:
            super().fail(error)
        finally:
            self._close_startup()

    @fails_open
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._set_up_at = perf_counter()
            self._close("another fit began")
            self._carried = None
            if measures(self, trainer.callbacks, warns=False):
                self._prepare(trainer, trainer.strategy)
                if self._session.enabled:
                    self._restoring.watch(trainer._checkpoint_connector, *READS)  # noqa: SLF001 no hook precedes them

    @fails_open
    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._carried = checkpoint.get(STATE_KEY)

    @fails_open
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        state = self._watch.recorder.state if self._watch is not None else self._carried
        if state is not None:
            checkpoint[STATE_KEY] = state

    @fails_open
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._end("another fit began")
        seconds = self._restoring.take()
        self._restore_seconds = None if trainer.ckpt_path is None else seconds
        if not measures(self, trainer.callbacks):
            return
        # Other callbacks go first: if a callback raises, nothing of ours is in place yet. The trainer is iterating over
        # its list right now: `_FitStarter` is appended to that list and runs last. The trainer's new list lacks it.
        trainer.callbacks = CallbackListCopy(trainer.callbacks, _FitStarter(self))

    @fails_open
    def begin(self, trainer: Any) -> None:
        trainer.callbacks = settled(trainer.callbacks)
        location = self._location(trainer, self._last_state(trainer))
        watch = self._session.begin(
            location,
            functools.partial(TrainerWatch, self, trainer),
            trainer.lightning_module,
            earlier=self._startup,
            objects=lambda: _objects(trainer),
            before_seconds=0.0 if self._set_up_at is None else perf_counter() - self._set_up_at,
        )
        if watch.recorder.active:
            self._watch = watch
            self._keep_quiet(watch.recorder)

    @fails_open
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._watch is not None:
            self._watch.recorder.observers.epoch_ended()

    @fails_open
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._watch is None:
            return
        averages = self._watch.recorder.whole(self._watch.recorder.step)
        self._close()
        self._session.show_summary()
        if averages:
            last = trainer.fit_loop.epoch_loop._batches_that_stepped - 1  # noqa: SLF001 the step of the last loss
            _log(trainer, averages, last)

    @fails_open
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        trainer.callbacks = settled(trainer.callbacks)
        # Lightning raises SystemExit after SIGTERM.
        in_order = issubclass(type(exception), SystemExit) and self._watch is not None
        self._close(exception)
        if in_order:
            self._session.show_summary()

    @fails_open
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._close()

    def _prepare(self, trainer: Any, strategy: Any) -> None:
        source = getattr(getattr(trainer.fit_loop, "_data_source", None), "instance", None)  # a loader or a data module
        ways = Batches(
            copied_aside=True,
            workers=checklist.workers(source),
            process=(strategy, "process_dataloader"),
            first=(strategy, "batch_to_device"),
        )
        here = getattr(strategy, "num_processes", 0)  # processes on this machine, if the strategy has several
        local_ranks = (strategy.local_rank, here) if here else None
        self._startup = checklist.prepare(self._session.settings, strategy.root_device, ways, local_ranks)

    def log_row(self, trainer: Any, step: int) -> None:
        recorder = self._session.recorder
        if recorder is None or not (trainer._logger_connector.should_update_logs or trainer.fast_dev_run):  # noqa: SLF001
            return
        row = recorder.row(step)
        if not row:
            return
        _log(trainer, row, trainer.fit_loop.epoch_loop._batches_that_stepped)  # noqa: SLF001 the step of the loss
        shown = trainer.progress_bar_metrics
        for name in recorder.logged.names.intersection(shown):  # such as an MFU that has become unknown
            del shown[name]
        shown.update({name: Figure(value) for name, value in bar(row, recorder.config.console).items()})

    def _keep_quiet(self, recorder: Recorder) -> None:
        """Turn off hooks that the trainer would call for every batch.

        It enters a profiler's context even for an empty hook, but skips None. A subclass's hooks stay, and so does one
        in which the watch ends steps.
        """
        for name in EVERY_BATCH:
            if name not in self.__dict__ and getattr(self, name).__module__.startswith(
                ("lightning.", "pytorch_lightning.")
            ):
                recorder.patches.replace(self, name, lambda _: None)

    def _close(self, failure: str | BaseException | None = None) -> None:
        try:
            self._end(failure)
        finally:
            self._close_startup()

    def _close_startup(self) -> None:
        self._restoring.take()
        startup, self._startup = self._startup, None
        if startup is not None:
            startup.closed()

    def _end(self, failure: str | BaseException | None = None) -> None:
        self._watch = None
        self._session.end(failure)

    def _last_state(self, trainer: Any) -> dict[str, Any] | None:
        """Return the counters of a checkpoint or of the trainer's previous fit; None if this one starts anew."""
        done = steps_done(trainer)
        if self._carried is not None or self._session.recorder is None or not done:
            return self._carried
        state = self._session.recorder.state
        return state if state["step"] == done else None

    def _location(self, trainer: Any, carried: dict[str, Any] | None) -> FitLocation:
        return FitLocation(
            integration="lightning",
            directory=journal_directory(trainer),
            directory_of_all=True,
            device=trainer.strategy.root_device,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            data_parallel=data_parallel_of(trainer),
            step=steps_done(trainer),
            carried=carried,
            restore_seconds=self._restore_seconds,
        )


class Figure(float):
    """Number with three significant digits, or an integer from 100 on, whatever format the bar requests."""

    def __format__(self, _spec: str) -> str:
        return f"{float(self):.0f}" if abs(self) >= LARGE else f"{float(self):.3g}"

    def __str__(self) -> str:
        return format(self)


def _log(trainer: Any, metrics: Mapping[str, float], step: int) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(metrics=dict(metrics), step=step)  # by name, as the trainer does


class _FitStarter:
    """Callback that begins the fit, after all other callbacks have run `on_train_start`."""

    state_key = "PerfCallback"

    def __init__(self, callback: LightningHooks) -> None:
        self._callback = callback

    def on_train_start(self, trainer: Any, _pl_module: Any) -> None:
        self._callback.begin(trainer)


def journal_directory(trainer: Any) -> Path:
    """Return the directory of the first logger that has a local one, or else the trainer's.

    Only rank 0 asks its loggers, and the others get it from there. `trainer.log_dir` isn't read: all ranks must read it
    at the same time.
    """
    for logger in trainer.loggers if trainer.global_rank == 0 else ():
        for name in ("log_dir", "save_dir"):
            path = None
            with guard(let_pass):  # a logger of the user's own may answer as it likes
                path = getattr(logger, name, None)
            if isinstance(path, str | os.PathLike) and str(path) and "://" not in str(path):
                return Path(path)
    root = str(trainer.default_root_dir)
    return Path() if "://" in root else Path(root)


def _objects(trainer: Any) -> TrainingObjects:
    loaders = flat(trainer.train_dataloader)
    facts: dict[str, Any] = {}
    with guard(let_pass):  # a strategy of the user's own may be anything
        facts = {name: getattr(options, name)(trainer) for name in ("rarer", "fusible")}
        facts["options"] = options.effective(trainer)
    return TrainingObjects(
        optimizers=tuple(trainer.optimizers),
        loaders=loaders,
        called=trainer.strategy.model,
        log_every=trainer.log_every_n_steps or None,
        **facts,
    )


def data_parallel_of(trainer: Any) -> int | None:
    replicas = None
    with guard(let_pass):  # a single process has none, and a strategy of the user's own may answer as it likes
        replicas = trainer.strategy.distributed_sampler_kwargs["num_replicas"]
    return replicas if type(replicas) is int and 0 < replicas <= trainer.world_size else None
