"""`torch.autograd.backward` and `torch.autograd.grad`, wrapped once for all measured loops.

Every backward of a loop goes through one of the two, and torch has no hook for either. Overlapping fits share the
wrappers, and the last fit to leave removes them, in whatever order the fits began. The wrapped function is kept as an
attribute of the wrapper and nowhere else, so an interrupt can't leave a wrong record of it.
"""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from threading import get_ident
from typing import Any, Protocol

import torch
from torch._guards import TracingContext

from perf_callbacks.kernel.batches.waiting import Waiting
from perf_callbacks.kernel.engine.marks import ONE_MORE_FORWARD, Mark
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process.graphs import Start
from perf_callbacks.kernel.process.watchdog import WATCHDOG

_OURS = "_perf_callbacks"
"""An attribute of a wrapper: the wrapper itself, so that a copy of its attributes on another wrapper is told apart."""


_CREATE_GRAPH = 4
"""Place of `create_graph` among the arguments of `torch.autograd.grad`."""

_ARGUMENTS = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
"""Names of the arguments of `torch.autograd.backward`."""

_DEFAULTS = (None, None, False, None, None)
"""Default values of these arguments, of all but the first."""

# Looking a member up in its class costs as much as recording it.
_BACKWARD, _OPTIMIZER, _UNDECIDED = Stage.BACKWARD, Stage.OPTIMIZER, Stage.UNDECIDED


class Listener(Protocol):
    """A fit that hears of gradients. Its methods raise nothing."""

    def begins_gradients(self, root: object = None) -> bool:
        """Take a call of `torch.autograd.grad` that builds no graph for a backward. False: its end is not told."""
        ...

    def builds_graph(self) -> None:
        """Take a call of `torch.autograd.grad` that builds a graph for one more turn of the forward."""

    def ends_backward(self) -> None:
        """End what `begins_gradients` began."""


class Loop:
    """A loop in the thread that is measured: where its marks go, and what decides whether one is written.

    While the loop trains, each watched call writes its mark by itself: frames are what measuring costs.
    """

    marks_backward = True
    """A backward needs nothing but its marks while the loop trains. Otherwise `begins_backward` is always called."""

    def __init__(self, tape: Tape, clock: Callable[[], float], fail: Callable[[Exception], object]) -> None:
        self.tape, self.clock, self.fail = tape, clock, fail
        self.thread = get_ident()
        self.evaluating = False
        """An evaluation was seen to begin, and no training since."""
        self.spans = 0
        """Spans that the user has begun and not ended."""
        self.late = False
        """The next step could not begin where the last one ended, and begins at the next call."""
        self.in_backward = False
        self.optimizing = 0
        """Optimizer steps under way, one within the other."""
        self.waiting: list[Waiting] = []
        """Batches that were fetched, and that no model was called with yet."""
        self.several = False
        """Two or more batches waited at once, and one still does."""
        self.starts: list[Start] = []
        """For each batch that a model was called with and no backward learned from: the start of that call."""
        self.ran = False
        """A model was called in training since the last batch was fetched."""
        self.backed = False
        """There was a backward."""
        self.engine: Any = None
        """The engine whose step a batch is added to, where batches wait."""

    def turn(self, stage: Stage) -> None:
        """Turn to a stage of training, whatever went on before. Raises nothing."""
        raise NotImplementedError

    def begins_backward(self, root: object = None) -> bool:
        """Begin a backward. False: it is in another thread, or within a backward, as in reentrant checkpointing."""
        if self.in_backward or get_ident() != self.thread:
            return False
        self.in_backward = True
        self.backpropagates(root)
        self.turn(_BACKWARD)
        return True

    def takes(self, arguments: object) -> None:
        """Take what a model is called with out of several batches that wait."""

    def backpropagates(self, root: object) -> None:  # noqa: ARG002 others need the loss
        """Note that a backward begins at a loss, for the batches that the model was called with since the last one."""
        self.backed = True
        self.starts.clear()

    def ends_backward(self) -> None:
        """End a backward."""
        self.in_backward = False
        self._mark(_OPTIMIZER if self.optimizing else _UNDECIDED)

    def begins_gradients(self, root: object = None) -> bool:
        """Take a call of `torch.autograd.grad` for a backward, but not in an evaluation."""
        return not self.evaluating and self.begins_backward(root)

    def builds_graph(self) -> None:
        """Take a gradient that is part of the loss for one more turn to the forward, which takes no time.

        So steps with a penalty are told from steps without one, whichever steps have it.
        """
        if not (self.in_backward or self.evaluating or self.spans or get_ident() != self.thread):
            self._mark(*ONE_MORE_FORWARD)

    def _mark(self, *marks: Mark) -> None:
        try:
            for mark in marks:
                self.tape.write((mark, self.clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)


class Backwards:
    """The owner of both functions. Listeners are held weakly: a freed fit is no reason to stay wrapped."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: tuple[weakref.ref[Listener], ...] = ()
        self._only: Callable[[], Loop | None] = _nobody
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def join(self, listener: Listener) -> None:
        """Tell this fit of gradients, and if it is a `Loop`, of backwards.

        The watchdog has a lock of its own. A collection within that lock may free a fit, and `_freed` would wait for
        our lock, so the watchdog is called without it.
        """
        with self._lock:
            self._listeners = (*self._alive(), weakref.ref(listener, self._freed))
            self._find_only()
        with suppress(RuntimeError):  # no thread can be started: then an interrupt may leave a wrapper behind
            WATCHDOG.watch(self)
        with self._lock:
            self._arrange()

    def leave(self, listener: Listener) -> None:
        """Stop telling this fit. Idempotent."""
        with self._lock:
            self._listeners = tuple([one for one in self._alive() if one() is not listener])
            self._find_only()
            self._arrange()

    def tick(self, now: float) -> bool:  # noqa: ARG002 the watchdog calls with the time
        """Finish a change that an interrupt cut in half."""
        with self._lock:
            self._listeners = self._alive()
            self._find_only()
            self._arrange()
            return bool(self._listeners)

    def _freed(self, _reference: object) -> None:
        """Remove the wrappers now if the lock is free: a collection may call this anywhere."""
        if self._lock.acquire(blocking=False):
            try:
                self.tick(0.0)
            finally:
                self._lock.release()

    def _forked(self) -> None:
        """Replace the lock: in a forked child, no thread releases one that the watchdog held."""
        self._lock = threading.RLock()

    def _find_only(self) -> None:
        """Find the loop that alone hears of backwards: it costs least."""
        loops: list[Any] = [one for one in self._listeners if isinstance(one(), Loop)]
        self._only = loops[0] if len(loops) == 1 else _nobody

    def _alive(self) -> tuple["weakref.ref[Listener]", ...]:
        return tuple([one for one in self._listeners if one() is not None])

    def _arrange(self) -> None:
        """Wrap or unwrap both functions as needed. A wrapper of ours beneath another's stays, and passes calls on."""
        heard = [one for one in [one() for one in self._listeners] if one is not None]
        loops = any(isinstance(one, Loop) for one in heard)
        for name, make, wanted in (("backward", self._backward, loops), ("grad", self._grad, bool(heard))):
            current = getattr(torch.autograd, name)
            wrapped = getattr(current, _OURS, None) is current
            if wanted and not wrapped:
                setattr(torch.autograd, name, make(current))
            elif wrapped and not wanted:
                setattr(torch.autograd, name, current.__wrapped__)

    def _backward(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `backward` with torch's own signature, since to unpack arguments costs a microsecond in each step.

        Another wrapper beneath ours, or a torch to come, may take other arguments.
        """
        code = getattr(inner, "__code__", None)
        names = None if code is None or code.co_kwonlyargcount else code.co_varnames[: code.co_argcount]
        open_ended = code is None or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
        if names != _ARGUMENTS or open_ended or inner.__defaults__ != _DEFAULTS:

            @functools.wraps(inner)
            def other(*args: Any, **kwargs: Any) -> Any:
                return self._in_several(inner, *args, **kwargs)

            return _signed(other)

        @functools.wraps(inner)
        def backward(  # noqa: PLR0917 as torch has it
            tensors: Any,
            grad_tensors: Any = None,
            retain_graph: bool | None = None,  # noqa: FBT001 as torch has it
            create_graph: bool = False,  # noqa: FBT001, FBT002 as torch has it
            grad_variables: Any = None,
            inputs: Any = None,
        ) -> Any:
            loop = self._only()
            if loop is not None and (loop.in_backward or get_ident() != loop.thread):
                return inner(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            if loop is None or loop.evaluating or loop.late or not loop.marks_backward:
                arguments = tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs
                return self._in_several(inner, *arguments)
            failed = False
            try:
                loop.in_backward = True
                try:
                    if len(loop.starts) > 1:
                        loop.backpropagates(tensors)
                    else:
                        loop.backed = True  # as it does, without its frame
                        loop.starts.clear()
                    loop.tape.write((_BACKWARD, loop.clock()))
                except Exception as error:  # noqa: BLE001 an observer never ends the run
                    failed = True
                    loop.fail(error)
                return inner(tensors, grad_tensors, retain_graph, create_graph, grad_variables, inputs)
            finally:
                loop.in_backward = False
                try:
                    if not failed:
                        loop.tape.write((_OPTIMIZER if loop.optimizing else _UNDECIDED, loop.clock()))
                except Exception as error:  # noqa: BLE001 as above
                    loop.fail(error)

        return _signed(backward)

    def _in_several(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the backward of several loops, or of one that is not simply training."""
        heard: list[Loop] = []
        try:
            for reference in self._listeners:
                loop = reference()
                if isinstance(loop, Loop) and not loop.in_backward and get_ident() == loop.thread:
                    try:
                        begun = loop.begins_backward(args[0] if args else kwargs.get("tensors"))
                    except Exception as error:  # noqa: BLE001 an observer never ends the run
                        loop.fail(error)
                    else:
                        heard += [loop] * begun
            return inner(*args, **kwargs)
        finally:
            for loop in heard:
                loop.ends_backward()

    def _grad(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `grad`. With `create_graph` the gradients are part of a loss, so the call belongs to the forward."""

        @functools.wraps(inner)
        def grad(*args: Any, **kwargs: Any) -> Any:
            create_graph = args[_CREATE_GRAPH] if len(args) > _CREATE_GRAPH else kwargs.get("create_graph")
            listeners = [] if _tracing() else [one for one in [one() for one in self._listeners] if one is not None]
            if create_graph:
                for listener in listeners:
                    listener.builds_graph()
                return inner(*args, **kwargs)
            heard: list[Listener] = []
            try:
                for listener in listeners:
                    heard += [listener] * listener.begins_gradients(args[0] if args else kwargs.get("outputs"))
                return inner(*args, **kwargs)
            finally:
                for listener in heard:
                    listener.ends_backward()

        return _signed(grad)


def _nobody() -> None:
    """Return no loop."""


def _signed(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    setattr(wrapper, _OURS, wrapper)
    return wrapper


def _tracing() -> bool:
    """Tell if torch's compiler is tracing: it makes the graph of a backward by `grad`, within a forward."""
    return TracingContext.try_get() is not None


BACKWARDS = Backwards()
"""The one owner in this process."""
