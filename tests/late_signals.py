"""Signals that arrive at the end of a collection, before any Python code runs."""

import _thread
import functools
import itertools
import signal


class PreemptError(Exception):
    """Raised by a handler."""


class Trips:
    """Gets a signal at the end of a collection. All of it is in C: the next function in Python handles the signal."""

    _trip = iter(functools.partial(_thread.interrupt_main, signal.SIGUSR1), object())
    __iter__ = staticmethod(functools.partial(itertools.islice, _trip, 1))
    stop = property([].extend)
