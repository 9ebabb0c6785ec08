"""The memory of one optimizer step by part, from the tensors of the running step."""

import weakref
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.hooks import RemovableHandle

from perf_callbacks.kernel.fit.first_batch import tensors
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process.compiler import anything_compiled
from perf_callbacks.kernel.process.device_facts import Allocator
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.memory.allocations import Allocations
from perf_callbacks.memory.use import in_gb

OPERATIONS, ALLOCATOR = "operations", "allocator"


class StepMemory:
    """Measures gradients before an optimizer steps, and its state at the end of the training step.

    A hook on all optimizers ignores those of other models, and holds no reference to the fit or the model. Its errors
    end the measurement, never the step.
    """

    def __init__(self, model: nn.Module | None, device: str) -> None:
        self.allocations = Allocations(device)
        self.hooked = False
        self._device = device
        self._trained = set[int]() if model is None else {id(parameter) for parameter in model.parameters()}
        self._gradients: dict[int, int] = {}
        self._unfollowed: dict[int, int] = {}  # gradients and state that the step neither made nor freed
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._failed = False
        self._hook = RemovableHandle(_global_optimizer_pre_hooks)

    @property
    def optimizer_seen(self) -> bool:
        return bool(self._optimizers) and not self._failed

    def begin(self, model: nn.Module | None) -> None:
        """Begin to measure a training step.

        Gradients of the previous step are tracked too: Lightning frees them only after the forward. Compiled code would
        recompile for a hook, so there is none then, and only the allocator tells activations.
        """
        self.allocations.hold(_storages(_gradients(model), self._device))
        self.hooked = not anything_compiled()
        if self.hooked:
            # torch's own function returns the handle after the hook is in place; an interrupt may come in between
            _global_optimizer_pre_hooks[self._hook.id] = self._steps

    def end(self) -> None:
        self._hook.remove()
        self.allocations.end()

    def look(self, optimizers: Iterable[Any]) -> None:
        """Without a hook: measure gradients after the optimizers' step; one that is gone counts as its weight."""
        for optimizer in optimizers:
            trained = [parameter for parameter in _parameters(optimizer) if parameter.requires_grad]
            self._note(
                self._gradients, [parameter if parameter.grad is None else parameter.grad for parameter in trained]
            )
            self._optimizers.add(optimizer)

    def parts(self, model: nn.Module | None, step: int, allocator: Allocator | None) -> Memory:
        """Call this at the end of the step."""
        weights = sizes([] if model is None else [*model.parameters(), *model.buffers()], self._device)
        state: dict[int, int] = {}
        for optimizer in self._optimizers:
            self._note(state, tensors(optimizer.state), weights)  # state may share storage with weights
            # Some optimizers keep their state in attributes of their own.
            others = weights | sizes(
                [parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None], self._device
            )
            self._note(state, tensors(getattr(optimizer, "__dict__", {})), others)
        made: dict[int, int] = {}  # by a closure that the optimizer ran after the hook, as in Lightning
        self._note(made, _gradients(model))
        gradients = max(sum(self._gradients.values()), sum(made.values()))
        static = sum(weights.values()) + gradients + sum(state.values())
        followed, activations, temporary, peak = self.allocations, None, None, None
        source = None
        if followed.seen and self.hooked:  # compiled code allocates past the dispatcher
            source, activations = OPERATIONS, followed.activation_bytes
            temporary = followed.temporary_bytes()
            peak = sum(weights.values()) + sum(self._unfollowed.values()) + followed.peak_bytes()
        if allocator is not None:
            peak = allocator.peak_bytes
            if activations is None:
                source, activations = ALLOCATOR, max(0, peak - static)
            else:
                temporary = max(temporary or 0, peak - static - activations)
        return Memory(
            step=step,
            device=self._device,
            source=source,
            weights_gb=in_gb(sum(weights.values()) if weights else None),
            gradients_gb=in_gb(gradients if self.optimizer_seen else None),
            optimizer_gb=in_gb(sum(state.values()) if self.optimizer_seen else None),
            activations_gb=in_gb(activations),
            temporary_gb=in_gb(temporary),
            peak_gb=in_gb(peak),
        )

    def _steps(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        try:
            if not self._failed and self._ours(optimizer):
                self._note(
                    self._gradients,
                    [parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None],
                )
                self._optimizers.add(optimizer)
        except Exception as error:  # noqa: BLE001 optimizers may be anything
            self._failed = True
            let_pass(error)

    def _ours(self, optimizer: Any) -> bool:
        return not self._trained or any(id(parameter) in self._trained for parameter in _parameters(optimizer))

    def _note(self, noted: dict[int, int], parts: Iterable[torch.Tensor], without: Container[int] = ()) -> None:
        storages = {key: size for key, size in sizes(parts, self._device).items() if key not in without}
        followed = self.allocations.keep(storages)
        self._unfollowed.update({key: size for key, size in storages.items() if key not in followed})
        noted.update(storages)


def sizes(parts: Iterable[torch.Tensor], device: str) -> dict[int, int]:
    """Return the bytes of each storage that tensors use on a device, by its address."""
    storages = _storages(parts, device)
    return {storage._cdata: storage.nbytes() for storage in storages}  # noqa: SLF001 there is no public identity


def _storages(parts: Iterable[torch.Tensor], device: str) -> list[Any]:
    return [tensor.untyped_storage() for tensor in _plain(parts) if tensor.device.type == device]


def _gradients(model: nn.Module | None) -> list[torch.Tensor]:
    return [] if model is None else [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _plain(parts: Iterable[Any]) -> Iterator[torch.Tensor]:
    for tensor in parts:
        if hasattr(tensor, "__tensor_flatten__"):
            names, _ = tensor.__tensor_flatten__()
            yield from _plain([getattr(tensor, name) for name in names])
        elif tensor.layout is torch.sparse_coo:
            yield from (tensor._indices(), tensor._values())  # noqa: SLF001 as torch's own optimizers do
        else:
            yield tensor


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
