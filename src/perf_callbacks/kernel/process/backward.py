"""Wraps `torch.autograd.backward` and `grad`, which have no hooks, once for all measured loops.

The original function is stored only in its wrapper, so that no interrupt can separate the two.
"""

import functools
from collections.abc import Callable
from functools import partial
from inspect import CO_VARARGS, CO_VARKEYWORDS
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch._guards import TracingContext

from perf_callbacks.kernel.batches.waiting import Waiting
from perf_callbacks.kernel.engine.marks import ONE_MORE_FORWARD, Mark
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.tape import Tape
from perf_callbacks.kernel.process.graphs import Start
from perf_callbacks.kernel.process.owner import Owner
from perf_callbacks.kernel.process.watchdog import WATCHDOG

_OURS = "_perf_callbacks"
"""Attribute of our wrapper whose value is the wrapper itself, also where other code copied it by `functools.wraps`."""


_CREATE_GRAPH = 4
"""Index of `create_graph` among the positional arguments of `torch.autograd.grad`."""

_ARGUMENTS = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")

_DEFAULTS = (None, None, False, None, None)

# Looking up the member of an enum costs as much as writing a mark.
_BACKWARD, _OPTIMIZER, _UNDECIDED = Stage.BACKWARD, Stage.OPTIMIZER, Stage.UNDECIDED


class Listener:
    """Its `builds_graph` runs at each call of `torch.autograd.grad` with `create_graph`."""

    def builds_graph(self) -> None:
        """A `grad` with `create_graph` counts as part of the forward. Never raise."""


class Loop(Listener):
    """State of one training loop. While it trains, wrappers only write marks: each method would cost a Python frame."""

    marks_backward = True
    """False: each backward of the training calls `begins_backward`, instead of only writing its marks."""

    def __init__(self, tape: Tape, clock: Callable[[], float], fail: Callable[[Exception], object]) -> None:
        self.tape, self.clock, self.fail = tape, clock, fail
        self.thread = get_ident()
        self.evaluating = False
        """True: an evaluation began, and training has not resumed."""
        self.spans = 0
        """Evaluations and checkpoints that the user has begun and not ended."""
        self.late = False
        """True: a step has ended, and the next step begins only at the next watched call."""
        self.in_backward = False
        self.optimizing = 0
        self.waiting: list[Waiting] = []
        self.several = False
        """True: two or more batches waited at once, and at least one is still waiting."""
        self.starts: list[Start] = []
        """Of the model call, for each batch that no backward has used yet."""
        self.ran = False
        """True: a model was called in training since the last batch was fetched."""
        self.backed = False
        self.engine: Any = None
        """Waiting batches are added to its current step."""

    def turn(self, stage: Stage) -> None:
        """Begin a stage of training, whatever the stage before was. Never raise."""
        raise NotImplementedError

    def call(self, model: nn.Module) -> bool:
        """Handle a call of a model for which a mark may not be enough. Return True if it is a forward."""
        raise NotImplementedError

    def begins_backward(self, root: object = None) -> None:
        self.in_backward = True
        self.backpropagates(root)
        self.turn(_BACKWARD)

    def takes(self, arguments: object) -> None:
        """Match the arguments of a model call to the waiting batches."""

    def backpropagates(self, root: object) -> None:  # noqa: ARG002 subclasses need the loss
        """A backward begins, whose loss comes from the batches since the previous one."""
        self.backed = True
        self.starts.clear()

    def ends_backward(self) -> None:
        self.in_backward = False
        self._mark(_OPTIMIZER if self.optimizing else _UNDECIDED)

    def builds_graph(self) -> None:
        """Mark one more forward of zero duration: a step with a gradient penalty has one more than other steps."""
        if not (self.in_backward or self.evaluating or self.spans or get_ident() != self.thread):
            self._mark(*ONE_MORE_FORWARD)

    def _mark(self, *marks: Mark) -> None:
        try:
            for mark in marks:
                self.tape.write((mark, self.clock()))
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)


class Backwards(Owner[bool]):
    """Owner of the wrappers around `backward` and `grad`. The claim of a `Loop` has the value True."""

    def __init__(self) -> None:
        super().__init__()
        self._only: Callable[[], Any] = _nobody
        """Returns the only loop, or None if there are none or several. The fastest wrapper calls this."""
        self._loops: list[ref[Any]] = []

    def join(self, listener: Listener) -> None:
        """Call the listener, until `release`, at each `grad` with `create_graph`, and a `Loop` at each backward too."""
        self._claim(listener, isinstance(listener, Loop))
        WATCHDOG.watch(self)
        self.reconcile()

    def _arrange(self) -> None:
        """If other code has wrapped our wrapper, it stays and only passes calls on."""
        loops = self._loops = [reference for reference, is_loop in self._claims.copy().items() if is_loop]
        self._only = loops[0] if len(loops) == 1 else _nobody
        for name, make, wanted in (("backward", self._backward, loops), ("grad", self._grad, self._claims)):
            current = getattr(torch.autograd, name)
            wrapped = getattr(current, _OURS, None) is current
            if wanted and not wrapped:
                setattr(torch.autograd, name, make(current))
            elif wrapped and not wanted:
                setattr(torch.autograd, name, current.__wrapped__)

    def _backward(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Keep torch's own signature, if it has that: `*args, **kwargs` would cost a microsecond in each step."""
        if not _has_usual_arguments(inner):

            @functools.wraps(inner)
            def other(*args: Any, **kwargs: Any) -> Any:
                root = args[0] if args else kwargs.get("tensors")
                return self._in_loops(root, partial(inner, *args, **kwargs))

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
                return self._in_loops(tensors, partial(inner, *arguments))
            failed = False
            try:
                loop.in_backward = True
                try:
                    if len(loop.starts) > 1:
                        loop.backpropagates(tensors)
                    else:
                        loop.backed = True  # as `backpropagates` does, without its frame
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

    def _in_loops(self, root: object, call: Callable[[], Any], *, gradients: bool = False) -> Any:
        """Report a backward to all loops of this thread; with `gradients=True`, not to those that evaluate."""
        heard: list[Loop] = []
        try:
            for reference in self._loops:
                loop = reference()
                if loop is None or loop.in_backward or get_ident() != loop.thread or (gradients and loop.evaluating):
                    continue
                try:
                    loop.begins_backward(root)
                except Exception as error:  # noqa: BLE001 an observer never ends the run
                    loop.fail(error)
                else:
                    heard.append(loop)
            return call()
        finally:
            for loop in heard:
                loop.ends_backward()

    def _grad(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        """With `create_graph`, gradients are part of a loss, and of the forward. Else a call is a backward."""

        @functools.wraps(inner)
        def grad(*args: Any, **kwargs: Any) -> Any:
            create_graph = args[_CREATE_GRAPH] if len(args) > _CREATE_GRAPH else kwargs.get("create_graph")
            # The compiler calls `grad` within a forward, to trace the backward.
            tracing = TracingContext.try_get() is not None
            if not (tracing or create_graph):
                root = args[0] if args else kwargs.get("outputs")
                return self._in_loops(root, partial(inner, *args, **kwargs), gradients=True)
            for reference in [] if tracing else [*self._claims]:
                listener = reference()
                if listener is not None:
                    listener.builds_graph()
            return inner(*args, **kwargs)

        return _signed(grad)


def _nobody() -> None: ...


def _has_usual_arguments(function: Callable[..., Any]) -> bool:
    """Compare a function's code with torch's `backward`: `inspect` would believe any `__signature__`, and may fail."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_kwonlyargcount or code.co_flags & (CO_VARARGS | CO_VARKEYWORDS):
        return False
    return code.co_varnames[: code.co_argcount] == _ARGUMENTS and function.__defaults__ == _DEFAULTS


def _signed(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    setattr(wrapper, _OURS, wrapper)
    return wrapper


BACKWARDS = Backwards()
