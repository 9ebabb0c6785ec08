"""Estimate the memory of a training step by a run on fake tensors, which have shapes but no values.

Like a real step's, an estimate contains all tensors that torch and autograd make. Shapes must not depend on values.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from perf_callbacks.kernel.units import GB
from perf_callbacks.memory.allocations import Allocations
from perf_callbacks.memory.estimate import SimulatedStep
from perf_callbacks.memory.step_memory import StepMemory, sizes

_DEVICE = "cpu"  # with fake tensors on "cuda", autograd would need a real GPU

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, lr=1e-3),
    "adamw-fused": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "sgd": partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adafactor": partial(torch.optim.Adafactor, lr=1e-3),
}
"""By the names that `perf-callbacks memory` accepts."""

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

MIXED = "-mixed"  # as in "bf16-mixed": the weights are float32, and the model runs under autocast


class Simulation:
    """Simulates optimizer steps of a model on fake tensors, with any batch size.

    If the model can't run on fake tensors, its error is raised. It must accept token ids and labels like a model of
    transformers. With `accelerator`, the optimizer updates all weights at once, as on a GPU, else one by one, as on a
    CPU.
    """

    def __init__(
        self, make: Callable[[torch.dtype], nn.Module], optimizer: str, dtype: str, *, accelerator: bool = True
    ) -> None:
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._follower = _Follower()
        number_format = DTYPES[dtype.removesuffix(MIXED)]
        self._cast = number_format if dtype.endswith(MIXED) else None
        with self._running():
            # conversion of fake weights afterwards fails: torch can't swap tensors that have weak references
            self.model = make(torch.float32 if self._cast else number_format).train()
            kind = OPTIMIZERS[optimizer]
            at_once = {"foreach": True} if accelerator and "fused" not in getattr(kind, "keywords", {}) else {}
            self._optimizer = kind(self.model.parameters(), **at_once)
        self._layers = _layers(self.model)
        self._plain = [layer.forward for layer in self._layers]
        self._began = False

    @property
    def layers(self) -> int:
        """Of the largest `nn.ModuleList`, or 0 without one."""
        return len(self._layers)

    @property
    def layer_bytes(self) -> int:
        """Bytes of the largest layer's weights, or of the whole model without layers."""
        return max([_bytes(layer) for layer in self._layers], default=_bytes(self.model))

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self, batch: int, length: int, *, checkpointed: int = 0, accumulated: int = 1) -> SimulatedStep:
        """Simulate a step of `batch` sequences; `checkpointed` layers count from the first one.

        At most two micro-batches are simulated, because a third would use as much memory as the second.
        """
        for place, (layer, plain) in enumerate(zip(self._layers, self._plain, strict=True)):
            # the forward of a module may be replaced: `nn.Module.__call__` looks it up on the instance
            layer.forward = partial(checkpoint, plain, use_reentrant=False) if place < checkpointed else plain
        with self._running():
            if not self._began:  # the first step makes the optimizer's state
                self._began = True
                self._pass(torch.ones(1, min(length, 2), dtype=torch.long))
                self._optimizer.step()
                self._optimizer.zero_grad()
            return self._measured(batch, length, min(accumulated, 2))

    def _measured(self, batch: int, length: int, accumulated: int) -> SimulatedStep:
        whole, passes, update = StepMemory(self.model, _DEVICE), Allocations(_DEVICE), Allocations(_DEVICE)
        gradients: dict[int, int] = {}
        ids = torch.ones(batch, length, dtype=torch.long)
        whole.begin(self.model)
        try:
            self._follower.followed = (whole.allocations, passes)
            for _ in range(accumulated):
                self._pass(ids)
                gradients = sizes(
                    [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None], _DEVICE
                )
                passes.keep(gradients)
            self._follower.followed = (whole.allocations, update)
            self._optimizer.step()
            self._optimizer.zero_grad()
            parts = whole.parts(self.model, 2, None)
        finally:
            self._follower.followed = ()
            whole.end()
        step = SimulatedStep(
            parts=parts,
            passes=tuple(passes.high_moments()),
            optimizer_temporary=update.peak_bytes(),
            weights=_bytes(self.model),
            gradients=sum(gradients.values()),
            optimizer=round((parts.optimizer_gb or 0.0) * GB),
        )
        passes.end()
        update.end()
        return step

    def _pass(self, ids: torch.Tensor) -> None:
        with torch.autocast(_DEVICE, self._cast or torch.bfloat16, enabled=self._cast is not None):
            loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), self._fake, self._follower:
            yield


class _Follower(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Passes results to `Allocations`, and makes `.item()` work on fake tensors: each value is 1 or True.

    Both are right for masks without padding, and for the step counts of optimizers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.followed: tuple[Allocations, ...] = ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 the operation of `.item()`
            return True if args[0].dtype is torch.bool else 1
        out = _grouped(func, args, kwargs) if func in _GROUPED else func(*args, **kwargs)
        for allocations in self.followed:
            allocations.made(func, out, torch._C._current_graph_task_id() + 1)  # noqa: SLF001 there is no public name
        return out


_GROUPED = {operation.default for operation in [getattr(torch.ops.aten, "_grouped_mm", None)] if operation is not None}
"""Products of a mixture of experts, which torch computes for fake tensors only in bfloat16."""


def _grouped(func: Any, args: Any, kwargs: Any) -> Any:
    halved = [
        argument.bfloat16() if isinstance(argument, torch.Tensor) and argument.is_floating_point() else argument
        for argument in args
    ]
    return torch.empty_like(func(*halved, **kwargs), dtype=args[0].dtype)


def _bytes(module: nn.Module) -> int:
    return sum(sizes([*module.parameters(), *module.buffers()], _DEVICE).values())


def _layers(model: nn.Module) -> list[Any]:
    """Return the layers of the largest `nn.ModuleList` in which all have the same class."""
    lists = [[*layers] for layers in model.modules() if isinstance(layers, nn.ModuleList)]
    alike = [sequence for sequence in lists if len(sequence) > 1 and len({type(layer) for layer in sequence}) == 1]
    return max(alike, key=lambda layers: sum(_bytes(layer) for layer in layers), default=[])
