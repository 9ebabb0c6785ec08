"""Compute the FLOPs of a model without running a training step.

This module is for a model that is compiled, and for an estimate that the user asks for. It counts the FLOPs on
a copy of the model with fake tensors, which have shapes but no values. If the copy can't run, a closed form computes
the FLOPs from the configuration of the model. The closed form needs a known, unchanged decoder from the package
transformers.
"""

import copy
import inspect
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack as dispatch_modes
from torch.utils._pytree import tree_leaves

from perf_callbacks.flops.calculator.architecture import FAMILIES, Architecture, dimensions
from perf_callbacks.flops.calculator.conventions import ConventionWork, matmul
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.work import Cell, Work
from perf_callbacks.kernel.settings.config import ConfigError

Example = Mapping[str, tuple[tuple[int, ...], torch.dtype, torch.device]]
"""Maps the name of each tensor of a batch to the tensor's shape, dtype and device."""


def example_of(tensors: Mapping[str, Any]) -> Example:
    return {name: (tuple(one.shape), one.dtype, one.device) for name, one in tensors.items()}


def count(model: nn.Module, example: Example, autocast: torch.dtype | None = None) -> FlopCounter:
    """Count the FLOPs of a forward and a backward on a copy of a Hugging Face model.

    The copy has fake tensors, which have shapes but no values. The model itself is not changed. Raise an error if the
    copy can't run, or would run code of the program, which may draw random numbers or count its calls. `autocast` is
    the dtype of an autocast around the model's call.
    """
    model = innermost(model)
    _check_code(model)
    accepted = inspect.signature(type(_base(model)).forward).parameters
    if not hasattr(model, "config") or not set(example) <= set(accepted):
        raise TypeError("a fake-tensor copy needs a model that is called with its batch, as in transformers")
    mode = FakeTensorMode()  # an operation on a real tensor raises an error
    with ExitStack() as stack:
        stack.enter_context(_random_numbers())
        stack.enter_context(torch.enable_grad())
        emptied = _emptied(model, mode)
        counter = FlopCounter(model=emptied)
        stack.enter_context(mode)
        batch = {
            name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype, device) in example.items()
        }
        stack.enter_context(counter)
        stack.enter_context(_Alone())  # type: ignore[no-untyped-call] # as below
        device = next(iter(batch.values())).device.type
        with nullcontext() if autocast is None else torch.autocast(device, autocast):
            loss = emptied(**batch).loss
        loss.backward()
    return counter


def _check_code(model: nn.Module) -> None:
    """Raise `TypeError` unless a copy of the model runs code of `_STOCK` alone, none of it compiled.

    Code of the program may have effects outside of the copy. Torch never compiles a function again that was called with
    fake tensors, so nothing inside of the model may be compiled.
    """
    for module in model.modules():
        forward: Any = type(module).forward
        replaced = vars(module).get("forward")
        roots = {name.partition(".")[0] for name in (type(module).__module__, forward.__globals__["__name__"])}
        bound = replaced is None or getattr(replaced, "__self__", None) is module
        if not (roots <= _STOCK and bound and _own_forward(module)):
            raise TypeError(f"{type(module).__name__} has a forward of its own")
        inner = module is not model and module._compiled_call_impl is not None  # noqa: SLF001 `Module.compile`
        if inner or hasattr(module, "_orig_mod") or hasattr(forward, "_torchdynamo_orig_callable"):
            raise TypeError(f"{type(module).__name__} is compiled by itself")
    config: Any = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) == "flex_attention" or getattr(config, "reference_compile", False):
        raise TypeError("a part of the model compiles itself")
    autograd: Any = torch._C._autograd  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue] nothing public
    watched = any(getattr(modules, name) for name in _WATCHES) or dispatch_modes()
    saving = getattr(autograd, "_top_saved_tensors_default_hooks", lambda _: None)  # torch 2.6 can't tell
    if watched or saving(True) is not None:
        raise TypeError("hooks of the program would see the copy")


_STOCK = {"torch", "transformers", "peft"}
_WATCHES = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


@contextmanager
def _random_numbers() -> Iterator[None]:
    """Restore all generators of random numbers that a model may use: wav2vec2 masks with NumPy's."""
    python, numpy = random.getstate(), getattr(sys.modules.get("numpy"), "random", None)
    of_numpy = None if numpy is None else numpy.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(of_numpy)


def closed_form(model: nn.Module, example: Example, autocast: torch.dtype | None = None) -> Work | None:
    """Return a lower bound of the FLOPs of a forward and a backward from the model's configuration.

    None means that no lower bound is certain. Each weight takes six FLOPs per token: two in the forward, two for the
    gradient of the input, and two for the gradient of the weight. Attention over the full sequence length is added. In
    a mixture of experts, only the active experts are counted. Recomputation and position embeddings are not included.
    """
    model = innermost(model)
    if not _vouched(model, example):
        return None
    config: Any = model.config
    try:
        # `architectures` names the class that the configuration was saved with, perhaps with another head
        architecture = Architecture(**dimensions({**config.to_dict(), "architectures": None}))
    except ConfigError:
        return None
    rows, length = example["input_ids"][0]
    forward = matmul(architecture, ConventionWork(batch=rows, seq=length))
    products, dtype = forward.layers + forward.head, str(autocast or model.dtype).removeprefix("torch.")
    return Work(
        {
            Cell("forward", dtype, "matmul"): products,
            Cell("backward", dtype, "matmul"): 2 * products,
            Cell("forward", dtype, "attention"): forward.attention,
            Cell("backward", dtype, "attention"): 2 * forward.attention,
        }
    )


_INPUTS = {"input_ids", "attention_mask", "labels"}

_MASKED_IN_FULL = {"eager", "sdpa", "flex_attention"}
"""Attention implementations that also compute padding tokens, although a mask hides these tokens. Other implementations
skip padding tokens."""


def _vouched(model: nn.Module, example: Example) -> bool:
    """Return True if the model is a decoder of a known class, is unchanged, and has no frozen parameters.

    For such a model, the closed form gives at most the true FLOPs.

    In a changed model, a custom head may process only some of the tokens, or a layer may be skipped. A model with an
    adapter computes fewer gradients. Frozen layers before the first trained layer compute no gradients.
    """
    config: Any = getattr(model, "config", None)
    attention = getattr(config, "_attn_implementation", None)
    return (
        getattr(config, "model_type", None) in FAMILIES
        and type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
        and all(type(one).__module__.partition(".")[0] in {"torch", "transformers"} for one in model.modules())
        and all(_own_forward(one) for one in model.modules())
        and all(parameter.requires_grad for parameter in model.parameters())
        and "input_ids" in example
        and {*example} <= _INPUTS
        and len(example["input_ids"][0]) == 2  # noqa: PLR2004 [rows, length]
        and ("attention_mask" not in example or attention in _MASKED_IN_FULL)
    )


def _own_forward(module: nn.Module) -> bool:
    """Return True if a module runs the forward that its class defines.

    Accelerate replaces a module's forward by a wrapper, and stores the original forward as `_original_forward`.
    """
    forward = getattr(module, "_original_forward", vars(module).get("forward"))
    return forward is None or getattr(forward, "__func__", None) is type(module).forward


def _emptied(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of the model with fake tensors. Values of parameters and buffers are not copied."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(mode.from_tensor(parameter.detach()), requires_grad=parameter.requires_grad)
    for module in model.modules():  # buffers, and tensors in attributes and their lists
        tensors = [leaf for leaf in tree_leaves([*vars(module).values()]) if isinstance(leaf, torch.Tensor)]
        memo.update((id(one), mode.from_tensor(one.detach())) for one in tensors if id(one) not in memo)
    copied: nn.Module = copy.deepcopy(model, memo)
    for module in copied.modules():
        for hooks in _HOOKS:  # the user's hooks must not run on the copy
            getattr(module, hooks).clear()
        module._compiled_call_impl = None  # noqa: SLF001 undoes `Module.compile`
    if getattr(_base(model), "_require_grads_hook", None) is not None:  # for checkpointing of adapters
        _base(copied).enable_input_require_grads()  # type: ignore[operator] # a method of transformers
    return copied


class _Alone(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Refuses collectives. A copy of the model that talked to other ranks would disturb the training of all."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in str(func):
            raise RuntimeError(f"a copy of the model must not call {func}")
        return func(*args, **(kwargs or {}))


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


def _base(model: nn.Module) -> nn.Module:
    """Return the model inside PEFT's wrapper, or the model itself. Wrapper and model take the same arguments."""
    base: Any = getattr(model, "get_base_model", None)
    return model if base is None else base()


def innermost(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers such as those of `torch.compile` and `DistributedDataParallel`."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return innermost(inner)
    return model
