"""Faults in the package, errors that end a training, and the state that must be restored after either.

Tests of all integrations share it.
"""

import gc
import itertools
import logging
import pkgutil
import time

import torch
from sampling import sampled
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.records.codec import attempts
from perf_callbacks.kernel.records.fit_records import Run, Steps, Summary
from perf_callbacks.kernel.records.journal_file import read

ERRORS = (RuntimeError("no more"), KeyboardInterrupt(), SystemExit(3))

OFTEN = {
    "kernel.engine.tape.Tape": "read",
    "kernel.engine.engine.Engine": "pause begin_span end_span end_step flush row",
    "kernel.engine.step_reader.StepReader": "collect",
    "kernel.batches.reader.BatchReader": "read",
    "kernel.records.journal_file": "encode",
    "kernel.records.journal_file.FileJournal": "write flush",
}
TWICE = {"kernel.engine.engine.Engine": "amounts", "kernel.process.patches.Patches": "replace"}
ONCE = {
    "kernel.engine.engine": "Engine.start Engine.stop Engine.summary",
    "kernel.engine.tape.Tape": "begin",
    "kernel.fit.location": "opening earlier",
    "kernel.fit.recorder": "Recorder.__init__",
    "kernel.records.journal_file.FileJournal": "__init__ close",
    "kernel.process.gc_observer.GcObserver": "install",
    "kernel.process.device": "of_model Cpu.timing",
    "report.cards": "closing",
    "report.opening_card": "opening",
}
"""Parts that a fit of every integration calls: four times or more, twice or more, once."""


def parts(owners):
    """Full names of parts, from a table by owner."""
    return [f"{owner}.{name}" for owner, names in owners.items() for name in names.split()]


def faults(*, often, twice, once, turn):
    """Each part, an integration's own and the shared ones, with the number of calls that go well before one fails.

    The numbers take turns, from another one on in each integration. A part that is called once fails at once.
    """
    firsts = (0, 1, 3)[turn:] + (0, 1, 3)[:turn]
    return [
        *sampled(parts(OFTEN) + parts(often), firsts),
        *sampled(parts(TWICE) + parts(twice), [0, 1]),
        *sampled(parts(ONCE) + parts(once), [0]),
    ]


def shared():
    """Full names of the parts that every integration has."""
    return [part for table in (OFTEN, TWICE, ONCE) for part in parts(table)]


class Fault:
    """Make a part of the package raise, from some call on."""

    def __init__(self, monkeypatch, part, first, kind=RuntimeError):
        inner, self.calls, self.first = pkgutil.resolve_name(f"perf_callbacks.{part}"), itertools.count(), first

        def broken(*args, **kwargs):
            if next(self.calls) >= first:
                if part.endswith(".close"):  # a file that stays open is told of in whichever test comes next
                    inner(*args, **kwargs)
                raise kind("a bug of ours")
            return inner(*args, **kwargs)

        monkeypatch.setattr(f"perf_callbacks.{part}", broken)

    @property
    def happened(self):
        return next(self.calls) > self.first


def break_clock(monkeypatch, reading, kind=RuntimeError):
    """Let the clock of the next recorder raise in one of its readings."""

    class Failing(Recorder):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.clock, self.readings = self.broken, itertools.count()

        def broken(self):
            if next(self.readings) == reading:
                raise kind("a bug of ours")
            return time.perf_counter()

    monkeypatch.setattr("perf_callbacks.session.Recorder", Failing)


EVALUATES_ALWAYS = "no metrics at step"
"""The warning that an evaluation in every step causes."""


def warnings(caplog, but=None):
    """Texts of the warnings of the package, but for one."""
    ours = [one for one in caplog.records if one.name == "perf_callbacks" and one.levelno >= logging.WARNING]
    return [text for text in (one.getMessage() for one in ours) if but is None or but not in text]


def as_found(*owners, but=()):
    """The class of each object with the functions and hooks on it, and the state of the process."""
    found = {
        "collector": (gc.isenabled(), gc.get_threshold(), list(gc.callbacks)),
        "backward": (torch.autograd.backward, torch.autograd.grad),
        "modes": len(_get_current_dispatch_mode_stack()),
        "module hooks": [*modules._global_forward_pre_hooks, *modules._global_forward_hooks],
    }
    for number, owner in enumerate(owners):
        for name, value in vars(owner).items():
            put = callable(value) and not isinstance(value, torch.nn.Module)
            if name not in but and (put or "hook" in name or "perf" in name):
                found[number, type(owner), name] = dict(value) if isinstance(value, dict) else value
        found[number] = type(owner)
    return found


def ended(directory, *, attempt=-1):
    """The summary at the end of a journal, which agrees with the records before it."""
    records = [entry.record for entry in attempts(read(directory / "perf_callbacks" / "rank0.jsonl"))[attempt]]
    assert [type(record) for record in records if isinstance(record, Run | Summary)] == [Run, Summary]
    assert isinstance(records[-1], Summary)
    assert sum(len(record.step) for record in records if isinstance(record, Steps)) == records[-1].steps
    return records[-1]
