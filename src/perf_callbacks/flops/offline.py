"""FLOPs without running a step: if the model must not run eagerly, or if the user asks for an estimate.

FLOPs are counted on a fake-tensor copy of the model. If that fails, and the model is a known and unchanged decoder of
transformers, FLOPs are derived in closed form from the sizes of the weights.
"""

import copy
import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from perf_callbacks.flops.calculator.architecture import FAMILIES
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.work import Cell, Work

_MATRIX = 2


Example = Mapping[str, tuple[tuple[int, ...], torch.dtype, torch.device]]
"""Shape, number format and device of each tensor of a batch, by name."""


def example_of(tensors: Mapping[str, Any]) -> Example:
    """Describe the tensors of a batch without their values."""
    return {name: (tuple(one.shape), one.dtype, one.device) for name, one in tensors.items()}


def count(model: nn.Module, example: Example) -> FlopCounter:
    """Count a forward and a backward of a Hugging Face model. Raise an error if the copy of the model can't run.

    The model itself is not touched: the copy has fake tensors, with shapes but no values.
    """
    model = innermost(model)
    accepted = inspect.signature(type(_base(model)).forward).parameters
    if not hasattr(model, "config") or not set(example) <= set(accepted):
        raise TypeError("a fake-tensor copy needs a model that is called with its batch, as in transformers")
    mode, counter = FakeTensorMode(allow_non_fake_inputs=True), FlopCounter()  # tensors that aren't buffers
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.enable_grad())
        emptied = _emptied(model, mode)
        stack.enter_context(mode)
        batch = {
            name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype, device) in example.items()
        }
        stack.enter_context(counter)
        emptied(**batch).loss.backward()
    return counter


def closed_form(model: nn.Module, example: Example) -> Work | None:
    """Derive a lower bound of a forward and a backward from the sizes of the weights; None: no bound is certain.

    Per token and weight: two FLOPs for the forward, two for the gradients of its inputs, two for its own gradient; and
    attention over the whole length. Of the experts, only those active for a token and shared experts count.
    Recomputation and angles of positions are not included.
    """
    model = innermost(model)
    share = _active_share(model)
    if share is None or not _vouched(model, example):
        return None
    rows, length = example["input_ids"][0]
    embeddings = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    used = Fraction()
    dtype = None
    for name, one in model.named_parameters():
        if one.dim() < _MATRIX or id(one) in embeddings:
            continue
        active = one.numel() * (share if _EXPERT & {*name.split(".")} else 1)
        used += active
        dtype = dtype or str(one.dtype).removeprefix("torch.")
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None and id(head.weight) in embeddings:  # tied: the embedding is multiplied as the head, too
        used += head.weight.numel()
        dtype = dtype or str(head.weight.dtype).removeprefix("torch.")
    attention = 4 * _width(model) * rows * length**2
    dtype = dtype or "float32"
    tokens = rows * length
    return Work(
        {
            Cell("forward", dtype, "matmul"): int(2 * used * tokens),
            Cell("backward", dtype, "matmul"): int(4 * used * tokens),
            Cell("forward", dtype, "attention"): attention,
            Cell("backward", dtype, "attention"): 2 * attention,
        }
    )


_VOUCHED = {*FAMILIES, "qwen2_moe"}
"""Values of `model_type` of the decoders whose closed form was compared with a count."""

_INPUTS = {"input_ids", "attention_mask", "labels"}

_MASKED_IN_FULL = {"eager", "sdpa", "flex_attention"}
"""Implementations of attention that compute padding too, although a mask hides it. Others skip the padding."""


def _vouched(model: nn.Module, example: Example) -> bool:
    """Return True if a closed form can't be too high: for a known, unchanged decoder of transformers, fully trained.

    A custom head may see fewer tokens, a layer may be skipped, an adapter has other gradients, and layers below the
    first trained layer have no gradients.
    """
    config: Any = getattr(model, "config", None)
    attention = getattr(config, "_attn_implementation", None)
    return (
        getattr(config, "model_type", None) in _VOUCHED
        and type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
        and all(type(one).__module__.partition(".")[0] in {"torch", "transformers"} for one in model.modules())
        and all(_own_forward(one) for one in model.modules())
        and all(parameter.requires_grad for parameter in model.parameters())
        and "input_ids" in example
        and {*example} <= _INPUTS
        and len(example["input_ids"][0]) == _MATRIX
        and ("attention_mask" not in example or attention in _MASKED_IN_FULL)
    )


def _own_forward(module: nn.Module) -> bool:
    """Return True if a module runs the forward of its class.

    Accelerate wraps a forward and keeps the wrapped function as `_original_forward`.
    """
    forward = getattr(module, "_original_forward", vars(module).get("forward"))
    return forward is None or getattr(forward, "__func__", None) is type(module).forward


_EXPERT = {"experts", "expert"}
"""Names of the parts of a model that are experts. Only some experts process a token."""


def _active_share(model: nn.Module) -> Fraction | None:
    """Return the share of the experts that process a token; 1: no experts; None: the configuration doesn't say."""
    segments = {segment for name, _ in model.named_parameters() for segment in name.split(".")}
    if not any("expert" in segment and "shared" not in segment for segment in segments):
        return Fraction(1)
    if not segments & _EXPERT:
        return None
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    all_names = ("num_local_experts", "num_experts", "n_routed_experts")
    there, active = (
        next((value for name in names if isinstance(value := getattr(config, name, None), int) and value > 0), None)
        for names in (all_names, ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k"))
    )
    return None if there is None or active is None or active > there else Fraction(active, there)


def _width(model: nn.Module) -> int:
    """Return the width of all heads of all layers together; 0 if the configuration doesn't say."""
    config: Any = getattr(model, "config", None)
    layers, heads = (getattr(config, name, None) or 0 for name in ("num_hidden_layers", "num_attention_heads"))
    hidden = getattr(config, "hidden_size", None) or 0
    return int(layers * heads * (getattr(config, "head_dim", None) or (hidden // heads if heads else 0)))


def _emptied(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of the model with fake tensors. No large tensor is copied on the way."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(mode.from_tensor(parameter.detach()), requires_grad=parameter.requires_grad)
    memo.update((id(buffer), mode.from_tensor(buffer)) for buffer in model.buffers())
    copied: nn.Module = copy.deepcopy(model, memo)
    for module in copied.modules():
        for hooks in _HOOKS:  # the user's hooks must not run on the copy
            getattr(module, hooks).clear()
        module._compiled_call_impl = None  # noqa: SLF001 undoes `Module.compile`
    if getattr(_base(model), "_require_grads_hook", None) is not None:  # for checkpointing of adapters
        _base(copied).enable_input_require_grads()  # type: ignore[operator] # a method of transformers
    return copied


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


def _base(model: nn.Module) -> nn.Module:
    """Return the model inside PEFT's wrapper, or the model itself. Wrapper and model take the same arguments."""
    base: Any = getattr(model, "get_base_model", None)
    return model if base is None else base()


def innermost(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of the compiler and of data parallelism."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return innermost(inner)
    return model
