"""`torch.autograd.backward` and `torch.autograd.grad`, wrapped once for all the loops that are measured.

Every backward of a loop goes through one of the two, and neither has a hook. Overlapping fits share the wrappers, and
the last one to leave takes them off, in whatever order they began. A wrapper says by itself what it is wrapped around,
so there is no second account of it that an interrupt could falsify.
"""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch
from torch._guards import TracingContext

from perf_callbacks.host.watchdog import WATCHDOG

_OURS = "_perf_callbacks"
"""An attribute of a wrapper: the wrapper itself, so that a copy of its attributes on another wrapper is told apart."""


_CREATE_GRAPH = 4
"""Place of `create_graph` among the arguments of `torch.autograd.grad`."""


class Listener(Protocol):
    """A loop that wants to hear of backwards. What goes wrong in it stays in it."""

    hears_backwards: bool
    """Whether to be told of `torch.autograd.backward` too. Where trainers tell of it, the call is left as it is."""

    def begins_backward(self) -> bool:
        """Hear that a backward begins. False: it is none of this loop's, and its end is not to be told."""
        ...

    def begins_gradients(self) -> bool:
        """Hear that `torch.autograd.grad` begins, and builds no graph: for the loop it may be the backward."""
        ...

    def builds_graph(self) -> None:
        """Hear that `torch.autograd.grad` begins, and builds a graph: it is one more turn of the forward."""

    def ends_backward(self) -> None:
        """Hear that it is over."""


class Backwards:
    """The owner of both functions. Listeners are held weakly: a loop that is freed is no reason to stay wrapped."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: tuple[weakref.ref[Listener], ...] = ()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def join(self, listener: Listener) -> None:
        """Tell this loop of backwards.

        The watchdog has a lock of its own, in which a collection may free a loop: `_freed` would wait for our lock.
        So we don't ask the watchdog while we hold ours.
        """
        with self._lock:
            self._listeners = (*self._alive(), weakref.ref(listener, self._freed))
        with suppress(RuntimeError):  # no thread to be had: then only an interrupt may leave something behind
            WATCHDOG.watch(self)
        with self._lock:
            self._arrange()

    def leave(self, listener: Listener) -> None:
        """Tell it no more. Twice is once."""
        with self._lock:
            self._listeners = tuple([one for one in self._alive() if one() is not listener])
            self._arrange()

    def tick(self, now: float) -> bool:  # noqa: ARG002 it is the shape of all
        """Finish what an interrupt cut in half."""
        with self._lock:
            self._listeners = self._alive()
            self._arrange()
            return bool(self._listeners)

    def _freed(self, _reference: object) -> None:
        """Take the wrappers off at once if that is possible without waiting: a collection may run us anywhere."""
        if self._lock.acquire(blocking=False):
            try:
                self.tick(0.0)
            finally:
                self._lock.release()

    def _forked(self) -> None:
        """In a child, nobody releases a lock that the watchdog held."""
        self._lock = threading.RLock()

    def _alive(self) -> tuple["weakref.ref[Listener]", ...]:
        return tuple([one for one in self._listeners if one() is not None])

    def _arrange(self) -> None:
        """Make the functions what they should be. Beneath another's wrapper ours stays, and passes calls on."""
        heard = [one.hears_backwards for one in [one() for one in self._listeners] if one is not None]
        for name, make, wanted in (("backward", self._backward, any(heard)), ("grad", self._grad, bool(heard))):
            current = getattr(torch.autograd, name)
            wrapped = getattr(current, _OURS, None) is current
            if wanted and not wrapped:
                setattr(torch.autograd, name, make(current))
            elif wrapped and not wanted:
                setattr(torch.autograd, name, current.__wrapped__)

    def _backward(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def backward(*args: Any, **kwargs: Any) -> Any:
            heard = []
            for reference in self._listeners:  # a comprehension is one more frame in each step
                listener = reference()
                if listener is not None and listener.begins_backward():
                    heard.append(listener)
            try:
                return inner(*args, **kwargs)
            finally:
                for listener in heard:
                    listener.ends_backward()

        return _signed(backward)

    def _grad(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Gradients of gradients are part of a loss: with `create_graph` the call belongs to the forward."""

        @functools.wraps(inner)
        def grad(*args: Any, **kwargs: Any) -> Any:
            create_graph = args[_CREATE_GRAPH] if len(args) > _CREATE_GRAPH else kwargs.get("create_graph")
            listeners = [] if _tracing() else [one for one in [one() for one in self._listeners] if one is not None]
            if create_graph:
                for listener in listeners:
                    listener.builds_graph()
                return inner(*args, **kwargs)
            heard = [one for one in listeners if one.begins_gradients()]
            try:
                return inner(*args, **kwargs)
            finally:
                for listener in heard:
                    listener.ends_backward()

        return _signed(grad)


def _signed(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    setattr(wrapper, _OURS, wrapper)
    return wrapper


def _tracing() -> bool:
    """Tell whether torch's compiler is at work: it makes the graph of a backward by `grad`, within a forward."""
    return TracingContext.try_get() is not None


BACKWARDS = Backwards()
"""Of this process."""
