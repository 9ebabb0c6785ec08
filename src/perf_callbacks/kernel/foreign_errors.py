"""Finds errors that a signal handler of the program raised while our code was running.

Python runs a signal handler in the main thread, between any two instructions, so also within our code. A guard must not
swallow its exception: the program may need it to stop, or to time out.
"""

import contextlib
import signal
import traceback
from functools import partial
from inspect import CO_VARARGS
from itertools import pairwise
from types import CodeType, FrameType, TracebackType

_NUMBERS = signal.valid_signals()


def let_pass(error: BaseException) -> None:
    """Raise the signal handler's error if `error` comes from one. Every guard first calls this."""
    foreign = of_handler(error)
    if foreign is not None:
        raise foreign


def of_handler(error: BaseException) -> BaseException | None:
    """Return the error that a signal handler raised, this one or a cause of it. Otherwise return None.

    The `__context__` of an error, which was being handled when the error was raised, counts as a cause if a function in
    the error's traceback caught it: `Thread.start` may raise a `KeyError` while it handles a handler's exception. A
    `__context__` that another function caught may have been handled long ago.
    """
    current: BaseException | None = error
    seen = set[int]()  # an error may be its own cause
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = frames_of(current)
        if len(frames) > 1:
            handlers = _installed()
            if any(inner.f_code in handlers or _interrupts(outer, inner) for outer, inner in pairwise(frames)):
                return current
        cause, context = current.__cause__, current.__context__
        caught = context is not None and context.__traceback__ is not None and context.__traceback__.tb_frame in frames
        current = cause if cause is not None else context if caught else None  # an error may have no truth value
    return None


class suppress(contextlib.suppress):  # noqa: N801 named like the class of the standard library
    """Lets errors of a signal handler pass: `suppress(OSError)` doesn't swallow the handler's `TimeoutError`."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, trace)) and (error is None or of_handler(error) is None)


def frames_of(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _interrupts(outer: FrameType, inner: FrameType) -> bool:
    """Look for a signal number beside `outer`. Many handlers restore the default first, and are not installed."""
    code, values = inner.f_code, list[object]()
    for name in code.co_varnames[: code.co_argcount + bool(code.co_flags & CO_VARARGS)]:
        value = inner.f_locals.get(name)
        values += value if type(value) is tuple else [value]
    return any(frame is outer and number in _NUMBERS for number, frame in pairwise(values) if type(number) is int)


def _installed() -> set[CodeType]:
    """Return the code of installed handlers: `_interrupts` misses a handler that has deleted its arguments."""
    codes = set[CodeType]()
    for number in _NUMBERS:
        handler: object = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        for function in (handler, vars(type(handler)).get("__call__")):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
    return codes
