"""A failed allocation: how to recognise it, where it failed, and which tensors exist at that moment."""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from perf_callbacks.kernel.fit.first_batch import tensors
from perf_callbacks.kernel.fit.module_paths import ModulePaths
from perf_callbacks.kernel.records.machine_records import HeldMemory
from perf_callbacks.kernel.records.module_records import APART, ModuleWork
from perf_callbacks.memory.out_of_memory_text import EVALUATION
from perf_callbacks.memory.step_memory import sizes
from perf_callbacks.memory.use import GB

MOST = 8
"""Most entries of a report's list of large tensors."""

LONGEST = 300
"""Most characters of the framework's message in a report."""

DEEPEST = 8
"""Most errors in a chain of causes that are examined, and most containers within each other."""

MOST_LOOKS = 1000
"""Most objects that are examined at each depth of containers."""

_SIGNS = ("defaultcpuallocator", "out of memory", "cublas_status_alloc_failed", "bad_alloc")
"""Parts of the messages of a `RuntimeError`, in lower case: of the CPU's allocator, of devices whose error has no class
of its own, and of libraries."""

_REQUEST = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMGT]iB)")

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_CALL = nn.Module._call_impl.__code__  # noqa: SLF001 runs a module's forward and hooks; there is no public name

_STAGES = {"torch/autograd/graph.py": "backward", "torch/optim/": "optimizer"}
"""Files of torch whose functions show the stage, by the ends or parts of their paths."""


def failed_allocation(error: BaseException | None) -> BaseException | None:
    """Return the error of a failed allocation: this error, or a cause of this error. None: no allocation failed.

    >>> failed_allocation(ValueError("no")) is None
    True
    """
    for _ in range(DEEPEST):
        if error is None or isinstance(error, torch.OutOfMemoryError | MemoryError):
            return error
        if isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS):
            return error
        error = error.__cause__
    return None


def requested_bytes(message: str) -> int | None:
    """Return the size of the failed allocation. None: the message doesn't say.

    >>> requested_bytes("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
    2147483648
    """
    found = _REQUEST.search(message)
    return None if found is None else round(float(found[1]) * _UNITS[found[2]])


class Failure(NamedTuple):
    """Place of a failed allocation."""

    stage: str | None
    """One of forward, backward, optimizer, evaluation; None: another place."""
    calls: Sequence[nn.Module]
    """Modules that were being called, the outermost first."""
    frames: Sequence[tuple[nn.Module, FrameType]]
    """Frames that modules had called, each with its module."""

    @property
    def module(self) -> nn.Module | None:
        """Innermost module whose forward failed."""
        return self.calls[-1] if self.calls else None

    def layer(self, model: nn.Module) -> tuple[int, int] | None:
        """Return the number of the failed layer, from 1 on, and the number of layers. None: no list has the layer."""
        calls = {id(one) for one in self.calls}
        lists = [[*one] for one in model.modules() if isinstance(one, nn.ModuleList)]
        found = [
            (place, len(layers)) for layers in lists for place, layer in enumerate(layers, 1) if id(layer) in calls
        ]
        return max(found, key=lambda one: one[1], default=None)


def place(error: BaseException) -> Failure:
    """Find the place of a failure by the frames of the error's traceback.

    The report reads variables only in frames within a module's call. A frame outside may go on after the exception, and
    up to Python 3.12 reading its variables would keep their values alive.
    """
    stage, calls, frames = None, list[nn.Module](), []
    for frame in _frames(error):
        path = frame.f_code.co_filename.replace("\\", "/")
        found = next((name for part, name in _STAGES.items() if part in path), None)
        if found is not None and stage != "backward":
            stage = found
        elif frame.f_code is _CALL:
            owner = variables(frame).get("self")
            calls += [owner] if isinstance(owner, nn.Module) else []
            stage = "backward" if stage == "backward" else "forward"  # Lightning's forward runs in `optimizer.step`
        elif calls:
            frames.append((calls[-1], frame))
    if stage == "forward" and calls and not calls[0].training:
        stage = EVALUATION
    return Failure(stage, calls, frames)


def variables(frame: FrameType) -> dict[str, Any]:
    """Return the local variables of a function that has ended.

    Up to Python 3.12, reading the variables leaves a copy on the frame, which `traceback.clear_frames` doesn't clear.
    """
    found = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        frame.f_locals.clear()
    return found


def few_tensors(values: Iterable[object]) -> list[torch.Tensor]:
    """Return the tensors among values, and in their containers, which may be large, and may hold themselves."""
    found, level = [], [*islice(values, MOST_LOOKS)]
    for _ in range(DEEPEST):
        found += [value for value in level if isinstance(value, torch.Tensor)]
        inner: list[object] = []
        for value in level:
            held = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
            inner += islice(held, MOST_LOOKS - len(inner))
        level = inner
    return found


def coming_state_gb(optimizers: Iterable[Any]) -> float:
    """Return the memory that optimizers take at their first step: two tensors per weight with betas, one with momentum.

    Other optimizers, and optimizers that have already stepped, add nothing.
    """
    total = 0
    for optimizer in optimizers:
        if not getattr(optimizer, "state", None):
            tensors_each = 2 if "betas" in optimizer.defaults else 1 if optimizer.defaults.get("momentum") else 0
            total += tensors_each * sum(one.nbytes for group in optimizer.param_groups for one in group["params"])
    return total / GB


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


class Holdings:
    """Tensors of a model and its optimizers on a device, with their bytes by module. Each storage counts once."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Any], device: str) -> None:
        self._device = device
        self.paths = ModulePaths(model)
        self._seen = set[int]()
        self._bytes: Counter[tuple[str, str]] = Counter()
        states: dict[int, list[torch.Tensor]] = {}
        for optimizer in optimizers:
            for parameter, state in getattr(optimizer, "state", {}).items():
                states.setdefault(id(parameter), []).extend(tensors(state))
        modules = [(self.paths.by_id.get(id(one), ""), one) for one in model.modules()]
        own = [(path, [*one._parameters.values(), *one._buffers.values()]) for path, one in modules]  # noqa: SLF001 `parameters` has no shorter form for one module
        for path, held in own:
            self.add(path, "weights", held)
        for path, held in own:
            self.add(path, "gradients", [one.grad for one in held if isinstance(one, nn.Parameter)])
            self.add(path, "optimizer", [state for one in held for state in states.get(id(one), ())])

    def add(self, path: str, kind: str, found: Iterable[torch.Tensor | None]) -> None:
        """Add tensors of a module that were not added before."""
        for key, size in sizes([one for one in found if one is not None], self._device).items():
            if key not in self._seen:
                self._seen.add(key)
                self._bytes[path, kind] += size

    def add_failed_call(self, failure: Failure) -> None:
        """Add the local variables of the functions in which the allocation failed."""
        for module, frame in failure.frames:
            self.add(self.paths.by_id.get(id(module), ""), "failed call", few_tensors(variables(frame).values()))

    def gb(self, kind: str) -> float:
        """Return the GB of all tensors of a kind."""
        return sum([size for (_, found), size in self._bytes.items() if found == kind]) / GB

    def largest(self, counted: Sequence[ModuleWork]) -> tuple[HeldMemory, ...]:
        """Return the largest amounts, and activations of a counted step, the largest first."""
        found = [HeldMemory(path=path, kind=kind, gb=size / GB) for (path, kind), size in self._bytes.items()]
        found += [
            HeldMemory(path=line.path, kind="activations", gb=line.activation_bytes / GB)
            for line in counted
            if line.activation_bytes and line.path not in APART
        ]
        return tuple(sorted(found, key=lambda one: one.gb, reverse=True)[:MOST])
