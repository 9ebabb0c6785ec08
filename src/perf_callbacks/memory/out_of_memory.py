"""Recognize a failed allocation, find its place in the program, and list the tensors that exist then."""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from perf_callbacks.kernel.batches.tensors import DEEPEST
from perf_callbacks.kernel.failures import message_of
from perf_callbacks.kernel.fit.first_batch import tensors
from perf_callbacks.kernel.fit.module_paths import ModulePaths
from perf_callbacks.kernel.foreign_errors import frames_of
from perf_callbacks.kernel.records.machine_records import HeldMemory
from perf_callbacks.kernel.records.module_records import APART, ModuleWork
from perf_callbacks.kernel.units import GB
from perf_callbacks.memory.out_of_memory_text import EVALUATION
from perf_callbacks.memory.step_memory import sizes

MOST = 8

MOST_LOOKS = 1000  # objects examined at each depth of nested containers

_SIGNS = ("defaultcpuallocator", "out of memory", "cublas_status_alloc_failed", "bad_alloc")
"""In a `RuntimeError`: the CPU's allocator, for example, raises no `MemoryError`."""

_REQUEST = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMGT]iB)")

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_CALL = nn.Module._call_impl.__code__  # noqa: SLF001 runs a module's forward and hooks; there is no public name

_STAGES = {"torch/autograd/graph.py": "backward", "torch/optim/": "optimizer"}
"""Stage by a part of the path of torch's file."""


def failed_allocation(error: BaseException | None) -> BaseException | None:
    """Return the error of a failed allocation among an error and its causes.

    >>> failed_allocation(ValueError("no")) is None
    True
    """
    for _ in range(DEEPEST):
        kind = type(error)  # an error's own `__class__` may fail
        if error is None or issubclass(kind, torch.OutOfMemoryError | MemoryError):
            return error
        if issubclass(kind, RuntimeError) and any(sign in message_of(error).lower() for sign in _SIGNS):
            return error
        error = error.__cause__
    return None


def requested_bytes(message: str) -> int | None:
    """Return the size of the failed allocation, or None if the message has none.

    >>> requested_bytes("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
    2147483648
    """
    match = _REQUEST.search(message)
    return None if match is None else round(float(match[1]) * _UNITS[match[2]])


class Failure(NamedTuple):
    """Place in the program where an allocation failed."""

    stage: str | None
    """"forward", "backward", "optimizer" or "evaluation"; None, for example, in a data loader."""
    calls: Sequence[nn.Module]  # modules that were running, the outermost first
    frames: Sequence[tuple[nn.Module, FrameType]]  # the innermost running module, and a Python frame within its call

    @property
    def module(self) -> nn.Module | None:
        return self.calls[-1] if self.calls else None

    def layer(self, model: nn.Module) -> tuple[int, int] | None:
        """Return the failed layer, counted from 1, and how many its `nn.ModuleList` has; None outside of all lists."""
        calls = {id(module) for module in self.calls}
        lists = [[*module] for module in model.modules() if isinstance(module, nn.ModuleList)]
        positions = [
            (place, len(layers)) for layers in lists for place, layer in enumerate(layers, 1) if id(layer) in calls
        ]
        return max(positions, key=lambda position: position[1], default=None)


def place(error: BaseException) -> Failure:
    """Find the place of a failed allocation from the frames of the error's traceback.

    Frames outside of modules are left out: their functions may catch the exception and go on, and up to Python 3.12
    reading a running function's variables would keep their values alive.
    """
    stage, calls, frames = None, list[nn.Module](), []
    for frame in frames_of(error):
        path = frame.f_code.co_filename.replace("\\", "/")
        named = next((name for part, name in _STAGES.items() if part in path), None)
        if named is not None and stage != "backward":
            stage = named
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

    Up to Python 3.12, reading `f_locals` leaves a copy in the frame, which `traceback.clear_frames` wouldn't remove.
    """
    values = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        frame.f_locals.clear()
    return values


def few_tensors(values: Iterable[object]) -> list[torch.Tensor]:
    """Search nested lists, tuples and dicts, within limits: a container may be huge or contain itself."""
    held_tensors, level = [], [*islice(values, MOST_LOOKS)]
    for _ in range(DEEPEST):
        held_tensors += [value for value in level if isinstance(value, torch.Tensor)]
        inner: list[object] = []
        for value in level:
            held = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
            inner += islice(held, MOST_LOOKS - len(inner))
        level = inner
    return held_tensors


def coming_state_gb(optimizers: Iterable[Any]) -> float:
    """Estimate the GB of state that optimizers will allocate at their first step.

    With betas, as in Adam, it is two tensors per weight; with momentum one. All others, and those that have stepped,
    count as 0.
    """
    total = 0
    for optimizer in optimizers:
        if not getattr(optimizer, "state", None):
            tensors_each = 2 if "betas" in optimizer.defaults else 1 if optimizer.defaults.get("momentum") else 0
            total += tensors_each * sum(
                parameter.nbytes for group in optimizer.param_groups for parameter in group["params"]
            )
    return total / GB


class Holdings:
    """Bytes of a model and its optimizers on a device, by module and kind. Each storage counts once."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Any], device: str) -> None:
        self._device = device
        self.paths = ModulePaths(model)
        self._seen = set[int]()
        self._bytes: Counter[tuple[str, str]] = Counter()
        states: dict[int, list[torch.Tensor]] = {}
        for optimizer in optimizers:
            for parameter, state in getattr(optimizer, "state", {}).items():
                states.setdefault(id(parameter), []).extend(tensors(state))
        modules = [(self.paths.by_id.get(id(module), ""), module) for module in model.modules()]
        own = [(path, [*module._parameters.values(), *module._buffers.values()]) for path, module in modules]  # noqa: SLF001 `parameters` has no shorter form for one module
        for path, held in own:
            self.add(path, "weights", held)
        for path, held in own:
            self.add(path, "gradients", [tensor.grad for tensor in held if isinstance(tensor, nn.Parameter)])
            self.add(path, "optimizer", [state for tensor in held for state in states.get(id(tensor), ())])

    def add(self, path: str, kind: str, added: Iterable[torch.Tensor | None]) -> None:
        for key, size in sizes([tensor for tensor in added if tensor is not None], self._device).items():
            if key not in self._seen:
                self._seen.add(key)
                self._bytes[path, kind] += size

    def add_failed_call(self, failure: Failure) -> None:
        for module, frame in failure.frames:
            self.add(self.paths.by_id.get(id(module), ""), "failed call", few_tensors(variables(frame).values()))

    def gb(self, kind: str) -> float:
        return sum([size for (_, held), size in self._bytes.items() if held == kind]) / GB

    def largest(self, counted: Sequence[ModuleWork]) -> tuple[HeldMemory, ...]:
        """Return the `MOST` largest, with the activations of the modules in `counted`, measured before the failure."""
        amounts = [HeldMemory(path=path, kind=kind, gb=size / GB) for (path, kind), size in self._bytes.items()]
        amounts += [
            HeldMemory(path=line.path, kind="activations", gb=line.activation_bytes / GB)
            for line in counted
            if line.activation_bytes and line.path not in APART
        ]
        return tuple(sorted(amounts, key=lambda held: held.gb, reverse=True)[:MOST])
