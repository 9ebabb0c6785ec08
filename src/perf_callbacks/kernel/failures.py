"""Keep errors of the callback away from training: a guard for blocks, a decorator for methods, and text for logs."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.settings.config import LONGEST_RECORDED, printable


def _escape(record: logging.LogRecord) -> bool:
    """Escape control characters in a log message, because its names and paths may come from anywhere."""
    args = record.args
    if isinstance(args, tuple):  # a line end in an argument would begin a new log line
        record.args = tuple(
            [
                printable(str(argument)) if isinstance(argument, str | Path | Exception) else argument
                for argument in args
            ]
        )
    record.msg, record.args = _by_line(record.getMessage()), None
    if record.exc_info:
        record.exc_text = _by_line(logging.Formatter().formatException(record.exc_info))
    return True


def _by_line(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


logging.getLogger("perf_callbacks").addFilter(_escape)

P = ParamSpec("P")
T = TypeVar("T")


class Measuring(Protocol):
    """Object that measures until one of its methods raises an error."""

    @property
    def active(self) -> bool: ...

    def fail(self, error: Exception) -> None: ...


M = TypeVar("M", bound=Measuring)


def fails_open(method: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], T | None]:
    """Wrap a method so that an `Exception` in it ends measuring, but not the run. Later calls return None."""

    @functools.wraps(method)
    def call(self: M, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            active = self.active
        except AttributeError:
            if isinstance(self, type) or type(self).__module__.startswith("perf_callbacks"):
                raise
            # The user passed the class, so the framework calls the hook with its own first argument as `self`.
            raise TypeError(
                f"{method.__qualname__} needs an instance: write PerfCallback(), not PerfCallback"
            ) from None
        if not active:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)
            return None

    return call


class guard:  # noqa: N801 named like `contextlib.suppress`
    """Context manager that passes an `Exception` of its block to `handle`. The program goes on after the block.

    If a signal handler of the program raised the exception, `handle` must raise it again. If you write a `handle`
    yourself, begin it with a call of `let_pass`, which raises the exceptions of signal handlers again. Without a
    `handle`, the guard's attribute `reason` describes the exception. A guard costs two Python frames, so code that runs
    for each event of a step has its own `except` instead.
    """

    __slots__ = ("_handle", "reason")

    def __init__(self, handle: Callable[[Exception], object] | None = None) -> None:
        self._handle = handle
        self.reason = ""

    def __enter__(self) -> "guard":  # noqa: PYI034 Python 3.10 has no Self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if self._handle is not None:
            self._handle(error)
        else:
            let_pass(error)
            self.reason = describe(error)  # not the error: its traceback would keep the frame of the block alive
        return True


def logs(log: Callable[..., None], message: str, *, trace: bool = False) -> Callable[[Exception], None]:
    """Return a handler for `guard` that logs `message`, with the error for `%s`, and perhaps the traceback."""

    def handle(error: Exception) -> None:
        let_pass(error)
        log(message, describe(error), exc_info=error if trace else None)

    return handle


def describe(error: BaseException) -> str:
    """Render an exception in one line.

    >>> describe(ValueError("no"))
    'ValueError: no'
    """
    name, text = class_name(error), message_of(error)
    return f"{name}: {text}"[:LONGEST_RECORDED] if text else name[:LONGEST_RECORDED]


def class_name(error: BaseException) -> str:
    """Return the name of an exception's class, without code of the program: a metaclass may have its own `__name__`."""
    return str(type.__dict__["__name__"].__get__(type(error)))


def message_of(error: BaseException) -> str:
    """Return the message of an exception, or "" if its own `__str__` fails: the program must get its exception."""
    try:
        return str.__str__(str(error))  # a subclass of `str` may fail later
    except BaseException as failure:  # the `__str__` of another class may raise anything
        let_pass(failure)
        trace = failure.__traceback__
        if type(failure) is KeyboardInterrupt and trace is not None and trace.tb_next is None:
            raise  # Ctrl-C, because no `__str__` raised it
        return ""
