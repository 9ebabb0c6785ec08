"""`torch.autograd.backward` and `torch.autograd.grad`, wrapped once for all the loops that are measured.

Every backward of a loop goes through one of the two, and neither has a hook. Overlapping fits share the wrappers, and
the last one to leave takes them off, in whatever order they began. A wrapper says by itself what it is wrapped around,
so there is no second account of it that an interrupt could falsify.
"""

import functools
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

    def join(self, listener: Listener) -> None:
        """Tell this loop of backwards."""
        with self._lock:
            with suppress(RuntimeError):  # no thread to be had: then only an interrupt may leave something behind
                WATCHDOG.watch(self)
            self._listeners = (*self._alive(), weakref.ref(listener, self._freed))
            self._arrange()

    def leave(self, listener: Listener) -> None:
        """Tell it no more. Twice is once."""
        with self._lock:
            self._listeners = tuple([one for one in self._alive() if one() is not listener])
            self._arrange()

    def tick(self, _now: float) -> bool:
        """Finish what an interrupt cut in half."""
        with self._lock:
            self._listeners = self._alive()
            self._arrange()
            return bool(self._listeners)

    def _freed(self, _reference: object) -> None:
        self.tick(0.0)

    def _alive(self) -> tuple["weakref.ref[Listener]", ...]:
        return tuple([one for one in self._listeners if one() is not None])

    def _arrange(self) -> None:
        """Make the functions what they should be. Beneath another's wrapper ours stays, and passes calls on."""
        heard = [one.hears_backwards for one in [one() for one in self._listeners] if one is not None]
        for name, make, wanted in (("backward", self._backward, any(heard)), ("grad", self._grad, bool(heard))):
            current = getattr(torch.autograd, name)
            wrapped = vars(current).get(_OURS) is current
            if wanted and not wrapped:
                setattr(torch.autograd, name, make(current))
            elif wrapped and not wanted:
                setattr(torch.autograd, name, current.__wrapped__)

    def _backward(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def backward(*args: Any, **kwargs: Any) -> Any:
            heard = [one for one in [one() for one in self._listeners] if one is not None and one.begins_backward()]
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
