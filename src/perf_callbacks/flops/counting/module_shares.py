"""Divide the FLOPs and activations of a step among the modules of the model.

An operation of the forward or of recomputation belongs to the innermost running module, as the Python call stack shows.
It is right in hooks, other threads and after exceptions, which would break a list kept by hooks. In the backward, a
gradient belongs to the module whose forward created the running autograd node.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd import graph
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from perf_callbacks.flops.counting.coverage import unwrapped
from perf_callbacks.flops.counting.phases import in_backward, newest_node, running_node
from perf_callbacks.flops.work import Work, WorkKey
from perf_callbacks.kernel.failures import describe, fails_open, guard
from perf_callbacks.kernel.fit.module_paths import ModulePaths
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.records.module_records import APART, OPTIMIZER, OTHERS, OUTSIDE, ModuleWork

MOST_LINES = 40  # in a `flops` record; the last line sums up modules without their own

_CALL = nn.Module._call_impl.__code__  # noqa: SLF001 runs a module's forward and hooks; there is no public name
_ENGINE = graph._engine_run_backward.__code__  # noqa: SLF001 runs a backward
_STEP = next(
    (
        constant
        for constant in Optimizer.profile_hook_step.__code__.co_consts
        if getattr(constant, "co_name", "") == "wrapper"
    ),
    None,
)


class ModuleShares:
    """Sums up each module's FLOPs by phase, and the bytes of its activations.

    Each product is in one module's line, in the optimizer's, or in that for products outside of all modules: together
    they are the FLOPs of the step. Activations are what the forward made and is alive when the backward begins, of
    several backwards the largest sum. A tensor counts only for the module whose forward made it; what activation
    checkpointing drops doesn't count. After an error, the record has no module lines, but the step's FLOPs stay
    correct.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.failure: str | None = None
        """Why the FLOPs are not divided among modules; None if they are."""
        self.active = model is not None
        self.ran: set[int] = set()  # ids of modules in which operations ran
        self._main = get_ident()
        self._flops: dict[str, Counter[WorkKey]] = {}
        self._nodes: dict[tuple[int, int], str] = {}  # by the thread that made the node, and its sequence number
        self._storages: dict[int, tuple[StorageWeakRef, int, str]] = {}
        """Made by the forward, with bytes and module path."""
        self._places: dict[int, tuple[int, ...]] = {}  # results of an operation that are new tensors, by its `id`
        self._backward = 0
        self._activations: Counter[str] = Counter()
        if model is not None:
            with guard(self.fail):
                self._paths = ModulePaths(model)

    @fails_open
    def add(self, cell: WorkKey, flops: int, path: str | None = None) -> None:
        if path is None:
            path = OPTIMIZER if cell.phase == "optimizer" else self._node(self._path())
        self._flops.setdefault(path, Counter())[cell] += flops

    @fails_open
    def passed(self) -> str:
        """Return the module path of an uncounted operation of the forward: `add` may count it later."""
        return self._node(self._path())

    def follow(self, func: Any, out: Any, backward: int) -> None:
        """Runs for each operation, so it saves the frame of `fails_open`. `backward` is 0 outside of one."""
        if not self.active:
            return
        try:
            if backward and backward != self._backward:
                self._backward = backward
                self._take_activations()
            if backward and not torch.is_grad_enabled():
                return
            places = self._places.get(id(func))
            if places is None:
                places = self._places[id(func)] = _new_results(func)
            for storage in _storages(out, places) if places else ():
                key = storage._cdata  # noqa: SLF001 there is no public identity
                if key not in self._storages:
                    path = self._node(self._path())
                    if not backward:
                        self._storages[key] = StorageWeakRef(storage), storage.nbytes(), path  # type: ignore[no-untyped-call] # torch leaves it so
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self.fail(error)

    def forget(self) -> None:
        self._flops.clear()
        self._storages.clear()
        self._activations.clear()

    def lines(self, total: Work) -> tuple[ModuleWork, ...]:
        """Return no lines without a model, after an error, or if they don't add up to `total`."""
        return self._lines(total) or ()

    @fails_open
    def _lines(self, total: Work) -> tuple[ModuleWork, ...]:
        if Work.sum(map(Work, self._flops.values())).by_phase != total.by_phase:
            self.failure = "they don't sum to the FLOPs of the step"
            return ()
        names = dict.fromkeys([*self._paths.modules, *self._flops, *self._activations])
        lines = [self._line(name) for name in names]
        lines = sorted(
            [line for line in lines if any(_weight(line)) or line.parameters is None], key=_weight, reverse=True
        )
        if len(lines) <= MOST_LINES:
            return tuple(lines)
        kept = [line for line in lines if line.path in APART]
        kept += [line for line in lines if line.path not in APART][: MOST_LINES - 1 - len(kept)]
        rest = [line for line in lines if line not in kept]
        return (*sorted(kept, key=_weight, reverse=True), _sum(rest))

    def _line(self, path: str) -> ModuleWork:
        flops = Work(self._flops.get(path, {}))
        phases = flops.by_phase
        return ModuleWork(
            path=path,
            modules=self._paths.modules.get(path, 0),
            forward_flops=phases.get("forward", 0),
            backward_flops=phases.get("backward", 0),
            extra_flops=flops.hardware_flops - flops.model_flops,
            parameters=self._paths.parameters.get(path, 0),
            activation_bytes=self._activations[path] if self._backward else None,
        )

    def _path(self) -> str:
        by_id = self._paths.by_id
        engine = False
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 `callers` is too slow for each operation
        while frame is not None:
            code = frame.f_code
            if code is _CALL:
                module = id(frame.f_locals.get("self"))
                path = by_id.get(module)
                if path is not None:
                    self.ran.add(module)
                    return path
            elif code is _ENGINE and not engine:
                engine = True
                path = self._path_of_node(get_ident())
                if path is not None:  # else a module that runs a backward in its forward
                    return path
            elif code is _STEP and not engine:
                return OUTSIDE
            frame = frame.f_back
        path = self._path_of_node(self._main) if in_backward() and not engine else None
        return OUTSIDE if path is None else path

    def _path_of_node(self, thread: int) -> str | None:
        """The main thread made it, unless `thread` recomputes; a GPU's backward has its own. Each numbers its own."""
        number = running_node()
        if number is None:
            return None
        path = self._nodes.get((thread, number))
        return self._nodes.get((self._main, number)) if path is None else path

    def _node(self, path: str) -> str:
        """A node exists before its operation runs. Without one, the newest is an earlier operation's."""
        self._nodes.setdefault((get_ident(), newest_node()), path)
        return path

    def _take_activations(self) -> None:
        """Keep only the largest sum of what is alive."""
        self._storages = {key: storage for key, storage in self._storages.items() if not storage[0].expired()}  # type: ignore[no-untyped-call] # torch leaves it so
        activations: Counter[str] = Counter()
        for _, size, path in self._storages.values():
            activations[path] += size
        if activations.total() > self._activations.total():
            self._activations = activations

    def fail(self, error: Exception) -> None:
        self.active = False
        self.forget()
        let_pass(error)
        self.failure = describe(error)


def _new_results(func: Any) -> tuple[int, ...]:
    """Return the positions of results that are new tensors, not views of operands."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator: all results are new
        return _ALL
    return tuple([place for place, given in enumerate(schema.returns) if given.alias_info is None])


_ALL = (-1,)  # all positions


def _storages(out: Any, places: tuple[int, ...] = _ALL) -> Iterator[Any]:
    if isinstance(out, torch.Tensor):
        if out.layout is torch.strided and not out.is_nested:
            yield unwrapped(out).untyped_storage()
    elif isinstance(out, list | tuple):
        for part in out if places is _ALL or isinstance(out, list) else [out[place] for place in places]:
            yield from _storages(part)


def _weight(line: ModuleWork) -> tuple[int, int, int]:
    return line.hardware_flops, line.activation_bytes or 0, line.parameters or 0


def _sum(lines: list[ModuleWork]) -> ModuleWork:
    parameters = [line.parameters for line in lines]
    activations = [line.activation_bytes for line in lines]
    return ModuleWork(
        path=OTHERS,
        modules=sum(line.modules for line in lines),
        forward_flops=sum(line.forward_flops for line in lines),
        backward_flops=sum(line.backward_flops for line in lines),
        extra_flops=sum(line.extra_flops for line in lines),
        parameters=None if None in parameters else sum(filter(None, parameters)),
        activation_bytes=None if None in activations else sum(filter(None, activations)),
    )
