"""Find errors that a signal handler of the program raised while our code was running.

Python runs a signal handler in the main thread, between any two instructions, so also within our code. A guard keeps
our own errors away from training. But a guard must not swallow the exception of a handler, because the program may need
the exception to stop, or to time out.
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
    """Raise the signal handler's error if `error` comes from a signal handler.

    Every guard first calls this function.
    """
    foreign = of_handler(error)
    if foreign is not None:
        raise foreign


def of_handler(error: BaseException) -> BaseException | None:
    """Return the error that a signal handler raised: this error, or a cause of this error. Otherwise return None.

    The `__context__` of an error is the exception that was being handled when the error was raised. A `__context__`
    counts as a cause of the error if a function in the error's traceback caught the `__context__`. For example,
    `Thread.start` may raise a `KeyError` while it handles the exception of a signal handler. A `__context__` that
    another function caught may have been handled long ago.
    """
    found: BaseException | None = error
    seen = set[int]()  # an error may be its own cause
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        frames = frames_of(found)
        if len(frames) > 1:
            handlers = _installed()
            if any(inner.f_code in handlers or _interrupts(outer, inner) for outer, inner in pairwise(frames)):
                return found
        cause, context = found.__cause__, found.__context__
        caught = context is not None and context.__traceback__ is not None and context.__traceback__.tb_frame in frames
        found = cause if cause is not None else context if caught else None  # an error may have no truth value
    return None


class suppress(contextlib.suppress):  # noqa: N801 named like the class of the standard library
    """Suppress errors of the given classes, unless a signal handler raised them.

    For example, `suppress(OSError)` lets the `TimeoutError` of a signal handler pass.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return bool(super().__exit__(kind, error, trace)) and (error is None or of_handler(error) is None)


def frames_of(error: BaseException) -> list[FrameType]:
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _interrupts(outer: FrameType, inner: FrameType) -> bool:
    """Return True if the arguments of `inner` are a signal number and the frame `outer`, as in a signal handler.

    The handler may no longer be installed, because many handlers restore the default before they raise.
    """
    code, values = inner.f_code, list[object]()
    for name in code.co_varnames[: code.co_argcount + bool(code.co_flags & CO_VARARGS)]:
        value = inner.f_locals.get(name)
        values += value if type(value) is tuple else [value]
    return any(frame is outer and number in _NUMBERS for number, frame in pairwise(values) if type(number) is int)


def _installed() -> set[CodeType]:
    """Return the code objects of all installed signal handlers.

    The code objects are needed because `_interrupts` misses a handler that has deleted its arguments.
    """
    codes = set[CodeType]()
    for number in _NUMBERS:
        handler: object = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        for one in (handler, vars(type(handler)).get("__call__")):
            code = getattr(one, "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
    return codes
