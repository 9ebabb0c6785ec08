"""Faults at lines of ours, errors that end a training, and the state that must be restored after either.

Tests of all integrations share it.
"""

import ast
import functools
import gc
import logging
import random
import sys
from collections import Counter
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import torch
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import perf_callbacks
from perf_callbacks.kernel.process.gc_observer import GcObserver
from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.kernel.records.codec import attempts
from perf_callbacks.kernel.records.fit_records import Run, Steps, Summary
from perf_callbacks.kernel.records.journal_file import read

ERRORS = (RuntimeError("no more"), KeyboardInterrupt(), SystemExit(3))
PACKAGE = str(Path(perf_callbacks.__file__).parent)
OCCURRENCES = 6
"""The latest occurrence of a point that fails."""
UNDOING = {GcObserver.remove.__code__, Patches.restore.__code__}
"""Functions that take changes back, and can't if they are broken themselves."""


class BugError(Exception):
    """A bug of ours."""


class Point(NamedTuple):
    """The start of a function of ours, or of a call into C from one."""

    code: CodeType
    line: int
    event: str

    def place(self):
        return self.code.co_filename, self.line, self.code.co_name, self.event


class Points:
    """A profiler that counts the points of ours which it passes, and those under a guard.

    It leaves out generators: Python swallows what is raised while it closes one.
    """

    events = ("call", "c_call")

    def __init__(self, where=PACKAGE):
        self.where, self.passed, self.guarded, self.silent = where, Counter(), Counter(), set()

    def __call__(self, frame, event, _argument):
        code = frame.f_code
        ours = event in self.events and code.co_filename.startswith(self.where)
        if ours and not code.co_flags & CO_GENERATOR:
            self.come_to(Point(code, frame.f_lineno, event), frame)

    def come_to(self, point, frame):
        self.passed[point] += 1
        if self.passed[point] <= OCCURRENCES:
            guard = innermost_guard(frame, point.event)
            self.guarded[point] += guard is not None
            if guard == "silent":
                self.silent.add(point)

    def draw(self, seed, number):
        """Faults at guarded points. Each function has the same chance."""
        drawn, functions = random.Random(seed), {}
        for point in sorted(self.guarded, key=Point.place):
            occurrences = self.guarded[point]
            if occurrences == min(self.passed[point], OCCURRENCES):
                functions.setdefault(point.code, []).append((point, occurrences))
        chosen = drawn.sample([*functions.values()], min(number, len(functions)))
        return [
            Fault(point, drawn.randint(1, most), silent=point in self.silent)
            for point, most in map(drawn.choice, chosen)
        ]


class Fault(Points):
    """A profiler that raises once, when it comes to a point."""

    def __init__(self, point, occurrence=1, *, silent=False):
        super().__init__()
        self.point, self.occurrence, self.silent = point, occurrence, silent

    def __str__(self):
        file, line, function, event = self.point.place()
        return f"{file}:{line} {function}, {event} {self.occurrence}"

    def come_to(self, point, frame):
        self.passed[point] += point == self.point
        if point == self.point and self.passed[point] == self.occurrence:
            raise BugError(f"a bug of ours at {self}")

    @property
    def happened(self):
        return self.passed[self.point] >= self.occurrence


def profiled(profiler, action):
    sys.setprofile(profiler)
    try:
        return action()
    finally:
        sys.setprofile(None)


def callers(frame):
    """The frame, and the frames of ours that lead to it from a frame of the program."""
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        yield frame
        frame = frame.f_back


def innermost_guard(frame, event):
    """The kind of the guard around a point, "loud" or "silent"; None where an error reaches the program by design."""
    frames = [*callers(frame)]
    if any(caller.f_code.co_name == "__del__" or caller.f_code in UNDOING for caller in frames):
        return None  # Python swallows what is raised in a finalizer
    if event == "call":  # the function itself has begun no block yet
        del frames[0]
    for caller in frames:
        begins, kind = guards(caller.f_code.co_filename).get(caller.f_lineno, (0, None))
        if begins >= caller.f_code.co_firstlineno:  # a function that is made in the block runs later
            return kind
    return None


@functools.cache
def guards(filename):
    """The lines in a `with guard(...)`, or in a `try` whose handler keeps the error; where it begins, and its kind.

    A silent guard logs nothing: it lets the errors of signal handlers pass, and may keep a reason.
    """
    kinds = {}
    for node in ast.walk(ast.parse(Path(filename).read_text(encoding="utf-8"))):
        kind = None
        if isinstance(node, ast.With):
            items = [item for item in map(ast.unparse, node.items) if item.startswith("guard(")]
            kind = ("silent" if items[0].startswith(("guard()", "guard(let_pass)")) else "loud") if items else None
        elif isinstance(node, ast.Try):
            kind = next(filter(None, map(_kind, node.handlers)), None)
        if kind is not None:
            kinds.update(dict.fromkeys(range(node.body[0].lineno, node.body[-1].end_lineno + 1), (node.lineno, kind)))
    return kinds


def _kind(handler):
    nodes = [*ast.walk(handler)]
    broad = handler.type is None or ast.unparse(handler.type) in {"Exception", "BaseException"}
    if not broad or any(isinstance(node, ast.Raise) and node.exc is None for node in nodes):
        return None
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == handler.name]
    return "loud" if len(uses) > len([node for node in nodes if ast.unparse(node) == "let_pass"]) else "silent"


EVALUATES_ALWAYS = "no metrics at step"
"""The warning that an evaluation in every step causes."""


def warnings(caplog, but=None):
    """Texts of the warnings of the package, but for one."""
    ours = [
        record for record in caplog.records if record.name == "perf_callbacks" and record.levelno >= logging.WARNING
    ]
    return [text for text in (record.getMessage() for record in ours) if but is None or but not in text]


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
