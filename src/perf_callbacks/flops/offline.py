"""The FLOPs of a model without a training step: if it is compiled, or for an estimate.

They are counted on a copy with fake tensors, which have shapes but no values, or else follow from the configuration of
a known, unchanged decoder from transformers.
"""

import copy
import inspect
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import FunctionType
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
from perf_callbacks.flops.work import Work, WorkKey
from perf_callbacks.kernel.settings.config import ConfigError

Example = Mapping[str, tuple[tuple[int, ...], torch.dtype, torch.device]]


def example_of(tensors: Mapping[str, Any]) -> Example:
    return {name: (tuple(tensor.shape), tensor.dtype, tensor.device) for name, tensor in tensors.items()}


def count(model: nn.Module, example: Example, autocast: torch.dtype | None = None) -> FlopCounter:
    """Count a forward and a backward on a copy of a Hugging Face model with fake tensors. The model stays as it is.

    Raise an error if the copy can't run, or would run code of the program, which may draw random numbers or count its
    calls. `autocast` is the dtype of an autocast around the model's call.
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

    Code of the program may have effects outside of the copy. torch never again compiles a function that was called with
    fake tensors, so nothing inside of the model may be compiled.
    """
    for module in model.modules():
        kind = type(module)
        forward: Any = kind.forward
        replaced = vars(module).get("forward")
        bound = replaced is None or getattr(replaced, "__self__", None) is module
        attributes = [value for name, value in vars(module).items() if name != "forward"]  # Accelerate wraps it
        if not (bound and _own_forward(module) and _is_stock(kind) and all(map(_is_stock, attributes))):
            raise TypeError(f"{kind.__name__} has code of the program")
        inner = module is not model and module._compiled_call_impl is not None  # noqa: SLF001 `Module.compile`
        if inner or hasattr(module, "_orig_mod") or hasattr(forward, "_torchdynamo_orig_callable"):
            raise TypeError(f"{kind.__name__} is compiled by itself")
    for kind in {base for module in model.modules() for base in type(module).__mro__}:
        names = vars(sys.modules[kind.__module__]) if kind.__module__.startswith("transformers.models.") else {}
        replaced_functions = [value for value in (*vars(kind).values(), *names.values()) if not _is_stock(value)]
        if replaced_functions:
            raise TypeError(f"{kind.__module__} has code of the program: {replaced_functions[0]}")
    config: Any = getattr(model, "config", None)
    attention = getattr(config, "_attn_implementation", None)
    if attention == "flex_attention" or getattr(config, "reference_compile", False):
        raise TypeError("a part of the model compiles itself")
    utilities: Any = sys.modules.get("transformers.modeling_utils")
    if not _is_stock(getattr(utilities, "ALL_ATTENTION_FUNCTIONS", {}).get(attention, None)):
        raise TypeError(f"attention {attention} is code of the program")
    autograd: Any = torch._C._autograd  # noqa: SLF001 # pyright: ignore[reportAttributeAccessIssue] nothing public
    watched = any(getattr(modules, name) for name in _WATCHES) or dispatch_modes()
    saving = getattr(autograd, "_top_saved_tensors_default_hooks", lambda _: None)  # torch 2.6 can't tell
    if watched or saving(True) is not None:
        raise TypeError("hooks of the program would see the copy")


def _is_stock(value: Any) -> bool:
    """Return False for code of the program, also if it stands in place of a function of `_STOCK`."""
    if isinstance(value, partial):
        return _is_stock(value.func)
    function = getattr(value, "__func__", value)  # of a method
    if isinstance(function, FunctionType):
        return _root(function.__globals__["__name__"]) in _STOCK
    if isinstance(value, type):
        return not issubclass(value, nn.Module) or _root(value.__module__) in _STOCK
    return not callable(value) or _root(type(value).__module__) in _STOCK


def _root(module: str) -> str:
    return module.partition(".")[0]


_STOCK = {
    "perf_callbacks",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "huggingface_hub",
    "numpy",
    *sys.stdlib_module_names,
}
_WATCHES = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


@contextmanager
def _random_numbers() -> Iterator[None]:
    """Restore all generators that a model may use: wav2vec2 masks with NumPy's."""
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
    """Return a lower bound for a forward and a backward by the model's configuration, or None if none is certain.

    Each weight takes six FLOPs per token, two each in the forward and for the gradients of input and weight. Attention
    over the full length is added; of a mixture, only active experts count. Recomputation and position embeddings don't.
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
            WorkKey("forward", dtype, "matmul"): products,
            WorkKey("backward", dtype, "matmul"): 2 * products,
            WorkKey("forward", dtype, "attention"): forward.attention,
            WorkKey("backward", dtype, "attention"): 2 * forward.attention,
        }
    )


_INPUTS = {"input_ids", "attention_mask", "labels"}

_MASKED_IN_FULL = {"eager", "sdpa", "flex_attention"}
"""They compute padding tokens too, although a mask hides them; others skip these."""


def _vouched(model: nn.Module, example: Example) -> bool:
    """Return True for an unchanged decoder of a known class without frozen parameters.

    Else the closed form may exceed the true FLOPs: a custom head may process only some tokens, a layer may be skipped,
    an adapter or frozen first layers compute fewer gradients.
    """
    config: Any = getattr(model, "config", None)
    attention = getattr(config, "_attn_implementation", None)
    return (
        getattr(config, "model_type", None) in FAMILIES
        and type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
        and all(type(module).__module__.partition(".")[0] in {"torch", "transformers"} for module in model.modules())
        and all(_own_forward(module) for module in model.modules())
        and all(parameter.requires_grad for parameter in model.parameters())
        and "input_ids" in example
        and {*example} <= _INPUTS
        and len(example["input_ids"][0]) == 2  # noqa: PLR2004 [rows, length]
        and ("attention_mask" not in example or attention in _MASKED_IN_FULL)
    )


def _own_forward(module: nn.Module) -> bool:
    """Accelerate replaces a forward by a wrapper, and stores the original as `_original_forward`."""
    forward = getattr(module, "_original_forward", vars(module).get("forward"))
    return forward is None or getattr(forward, "__func__", None) is type(module).forward


def _emptied(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(mode.from_tensor(parameter.detach()), requires_grad=parameter.requires_grad)
    for module in model.modules():  # buffers, and tensors in attributes and their lists
        tensors = [leaf for leaf in tree_leaves([*vars(module).values()]) if isinstance(leaf, torch.Tensor)]
        memo.update((id(tensor), mode.from_tensor(tensor.detach())) for tensor in tensors if id(tensor) not in memo)
    copied: nn.Module = copy.deepcopy(model, memo)
    for module in copied.modules():
        for hooks in _HOOKS:  # the user's hooks must not run on the copy
            getattr(module, hooks).clear()
        module._compiled_call_impl = None  # noqa: SLF001 undoes `Module.compile`
    if getattr(_base(model), "_require_grads_hook", None) is not None:  # for checkpointing of adapters
        _base(copied).enable_input_require_grads()  # type: ignore[operator] # a method of transformers
    return copied


class _Alone(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Refuses collectives: a copy that talked to other ranks would disturb their training."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in str(func):
            raise RuntimeError(f"a copy of the model must not call {func}")
        return func(*args, **(kwargs or {}))


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


def _base(model: nn.Module) -> nn.Module:
    """Return the model inside PEFT's wrapper, which takes the same arguments."""
    base: Any = getattr(model, "get_base_model", None)
    return model if base is None else base()


def innermost(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers such as those of `torch.compile` and `DistributedDataParallel`."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return innermost(inner)
    return model
