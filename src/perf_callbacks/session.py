"""Session of an integration, such as Lightning: begins, measures and ends each of its fits."""

import atexit
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from torch import nn

from perf_callbacks import checklist
from perf_callbacks.advice import live_line, observer as advising
from perf_callbacks.baseline import observer as baseline
from perf_callbacks.flops import observer as counting
from perf_callbacks.goodput import observer as goodput
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.failures import describe, guard, logs
from perf_callbacks.kernel.fit import summary_file
from perf_callbacks.kernel.fit.identity import of_training
from perf_callbacks.kernel.fit.item import Batches
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext, TrainingObjects
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process import device, terminal
from perf_callbacks.kernel.records.fit_records import Checklist, Summary
from perf_callbacks.kernel.settings import config_file, on_event
from perf_callbacks.kernel.settings.config import FLAGS, ConfigError, PerfConfig, kind, rules
from perf_callbacks.kernel.settings.resolution import SWITCH
from perf_callbacks.memory import observer as memory_watch
from perf_callbacks.notifications import observer as notifications
from perf_callbacks.profiles import observer as profiles
from perf_callbacks.ranks import exchange, ungrouped
from perf_callbacks.report import cards, opening_card, report_file
from perf_callbacks.stalls import observer as stalls, suspensions
from perf_callbacks.stragglers import observer as stragglers
from perf_callbacks.trials import observer as trials

OBSERVERS: tuple[Callable[[Recorder, FitContext], Observer | None], ...] = (
    memory_watch.begin,  # comes first: when a count begins, it checks if memory follows operations
    counting.begin,
    profiles.begin,  # comes after the count, because no counted step is profiled
    stalls.begin,
    suspensions.begin,
    stragglers.begin,
    goodput.begin,
    advising.begin,
    live_line.begin,
    summary_file.begin,
    baseline.begin,
    trials.begin,
    ungrouped.begin,
    notifications.begin,
)
"""One per feature. It returns None if its feature is off."""


NO_EFFECT = (
    f"perf_callbacks: {SWITCH}=1 had no effect: nothing adds the callback to this program, and its own code has none. "
    "Start it with `perf-callbacks run`, or run `perf-callbacks autoload enable` once; "
    "`perf-callbacks status` says what is measured."
)


class Watch(Protocol):
    """Hooks and wrappers by which an integration sees the stages and steps of a fit."""

    def install(self) -> None:
        """Closing the fit's recorder removes all hooks and wrappers."""


W = TypeVar("W", bound=Watch)


def checked(
    config: object, strays: Mapping[str, object], call: str = "PerfCallback(PerfConfig({}))"
) -> PerfConfig | None:
    """Check an integration's arguments. For a setting in `strays`, the error shows the right `call`, with `{}`."""
    fields = [name for name in strays if name in rules()]
    if fields:
        example = call.format(f"{fields[0]}={strays[fields[0]]!r}")
        raise ConfigError(f"{fields[0]}: settings go into a PerfConfig: {example}.")
    if on_event.FIELD in strays:
        raise ConfigError(f"{on_event.ENVIRONMENT_ALONE}.")
    if strays:
        raise TypeError(f"{call.partition('(')[0]}() got an unexpected keyword argument {next(iter(strays))!r}")
    if config is not None and not isinstance(config, PerfConfig):
        raise ConfigError(f'config: got {kind(config)}, wanted a PerfConfig, such as PerfConfig(gc="observe").')
    return config


class Session:
    """Measures one fit at a time. An integration calls `begin` when a fit begins, and `end` when the fit ends."""

    def __init__(
        self,
        config: PerfConfig | None,
        show: Callable[[str], object] = terminal.show,
        *,
        strays: Mapping[str, object] = MappingProxyType({}),
        armed: bool = False,
    ) -> None:
        atexit.unregister(say_no_effect)
        self.settings = config_file.in_force(checked(config, strays), os.environ)
        self.enabled = self.settings.config.enabled
        """False: the configuration, or an error of this package, has turned measuring off."""
        self.recorder: Recorder | None = None
        """Of the current fit, or else of the last. None before the first."""
        self._show, self._armed = show, armed
        self._checklist: Sequence[Checklist] = ()
        for remark in self.settings.remarks:
            log.warning("perf_callbacks: %s", remark)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and spawned processes need their own recorders."""
        return {**self.__dict__, "recorder": None}

    @property
    def summary(self) -> Summary | None:
        """Of the current fit so far, or else of the last. None before the first."""
        return self.recorder.summary if self.recorder is not None else None

    def begin(
        self,
        location: FitLocation,
        watch: Callable[[Recorder], W],
        model: nn.Module | None,
        batches: Callable[[], Batches] = Batches,
        *,
        earlier: checklist.Startup | None = None,
        objects: Callable[[], TrainingObjects] = TrainingObjects,
        before_seconds: float = 0.0,
    ) -> W:
        """Begin a fit: make a recorder, apply the checklist, install hooks, make observers, and show the opening card.

        The checklist may replace methods that the `Watch` wraps, so it comes first; at the end, it is undone after the
        wrappers. `batches` says how batches get to the device, `earlier` has items applied before the fit, and
        `before_seconds` are the trainer's on the fit so far. Without `model`, no FLOPs are counted.
        """
        self.end("another fit began")
        self.recorder = None
        if location.devices == 1:
            location = replace(location, devices=len(device.of_model(model, location.device)))
        ranks = exchange.meet(location, self.settings.config)
        recorder = self.recorder = Recorder(self.settings, location, ranks=ranks, training=of_training(model, objects))
        try:
            recorder.reader.time_first = model is not None and any(map(_takes_time_first, model.modules()))
            watching = watch(recorder)
            recorder.engine.account.before_seconds = before_seconds
            rows = self._checklist = checklist.start(recorder, self.settings, location.device, batches(), earlier)
            if recorder.active:
                watching.install()
                context = FitContext(model=model, objects=objects, armed=self._armed, checklist=rows, show=self._show)
                for make in OBSERVERS:
                    observer = make(recorder, context) if recorder.active else None  # nothing would undo its changes
                    if observer is not None:
                        recorder.observe(observer)
                findings = recorder.observers.findings(None)
                if recorder.active and location.rank == 0:
                    self._show(
                        opening_card.opening(
                            recorder.run,
                            journal=recorder.journal_path,
                            checklist=rows,
                            findings=findings,
                            columns=terminal.columns(),
                        )
                    )
            recorder.attempt(lambda begun: begun.engine.account.started(begun.clock()))
        except BaseException as error:  # an interrupt too: nothing else ends a fit whose `begin` failed
            recorder.close(error)
            raise
        return watching

    def end(self, failure: str | BaseException | None = None) -> None:
        """Undo every change. Idempotent."""
        if self.recorder is not None:
            self.recorder.close(failure)

    def show_summary(self) -> None:
        """On rank 0, show the closing card of the last fit, and write its report."""
        recorder = self.recorder
        if recorder is None or recorder.run.rank != 0:
            return
        with guard(recorder.fail):
            summary = recorder.summary
            if summary is not None:
                self._show(cards.closing(summary, self._checklist, terminal.columns()))
        self._report(recorder)

    def _report(self, recorder: Recorder) -> None:
        if not recorder.config.report or recorder.active:
            return
        with guard(logs(log.warning, "perf_callbacks: no report: %s", trace=True)):
            if recorder.journal_path is None:
                log.warning("perf_callbacks: no report: it is made from the journal, and there is none.")
            else:
                self._show(report_file.make(recorder.journal_path, recorder.run.run_id))

    def fail(self, error: Exception) -> None:
        """Log an error of this package once, stop measuring, and undo every change."""
        self.enabled = False
        if self.recorder is not None:
            self.recorder.fail(error)
        else:
            let_pass(error)
            log.warning("perf_callbacks could not begin, training goes on: %s.", describe(error), exc_info=error)


def _takes_time_first(module: nn.Module) -> bool:
    """Return True if the first dimension of a module's input is time, and not the batch, or may be."""
    layer = isinstance(module, nn.RNNBase | nn.MultiheadAttention) and not module.batch_first
    return layer or isinstance(module, nn.RNNCellBase)


class _Hinting(type):
    """Gives a better error if a trainer gets a callback's class instead of an instance."""

    elsewhere: str

    def __getattr__(cls, name: str) -> Any:
        raise _lacking(cls, name)


class CallbackBase(metaclass=_Hinting):
    """Base class of the callbacks for the Hugging Face `Trainer` and for the Lightning `Trainer`."""

    _session: Session
    armed = False
    """True: a launcher added this callback. If the program adds its own, this one does nothing."""
    elsewhere: ClassVar[str]
    """Hint for error messages, which names another framework and the callback for it."""

    def __getattr__(self, name: str) -> Any:
        raise _lacking(type(self), name)

    @property
    def enabled(self) -> bool:
        """False: the configuration, or an error of this package, has turned measuring off."""
        return self._session.enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self._session.enabled = value

    active = enabled

    @property
    def summary(self) -> Summary | None:
        """Summary of the current fit so far, or else of the last fit. None before the first fit."""
        return self._session.summary

    def fail(self, error: Exception) -> None:
        """Log an error of this package once, stop measuring, and undo every change."""
        self._session.fail(error)


def _lacking(callback: _Hinting, name: str) -> AttributeError:
    """Name the callback for another framework if `name` is a hook of that framework."""
    hint = f": for {callback.elsewhere}" if name.startswith("on_") or name in {"setup", "state_key"} else ""
    return AttributeError(f"{callback.__module__}.{callback.__name__} has no attribute {name!r}{hint}")


def say_no_effect(process: int) -> None:
    """Warn that PERF_CALLBACKS=1 had no effect, unless the program ended with an exception."""
    if process == os.getpid() and not hasattr(sys, "last_value"):  # a fork inherits the registration
        log.warning(NO_EFFECT)


_SWITCHED_ON = FLAGS.get(os.environ.get(SWITCH, "").strip().lower(), False)
if _SWITCHED_ON and os.environ.get("RANK", "0") == "0" and multiprocessing.parent_process() is None:  # not in a worker
    atexit.register(say_no_effect, os.getpid())  # until an integration makes a session, or the process is armed
