"""FLOPs of a training step by published formulas, called conventions.

A convention adds up the forward's FLOPs in layers, output head and attention. The backward takes twice as many: once
for the gradients of inputs, once for the gradients of weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from perf_callbacks.flops.calculator.architecture import Architecture, known


class Forward(NamedTuple):
    """FLOPs of a forward over all tokens of a step."""

    layers: int
    """FLOPs of products with layer matrices. Conventions that count parameters put all counted parameters here."""
    head: int
    attention: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConventionWork:
    """Size of a training step over all devices, and options that change its FLOPs."""

    batch: int
    seq: int
    recompute: str = "none"
    """Part of each layer that the backward recomputes: "none", "selective" (the attention) or "full" (the layer)."""
    trainable: str = "all"
    """"lora": the backward computes no gradients of weights. The FLOPs of the adapters are left out."""
    causal: str = "full"
    """"half": the convention `matmul` counts half of attention. All others count it in full."""

    @property
    def tokens(self) -> int:
        return self.batch * self.seq


def attention(model: Architecture, work: ConventionWork, width: int) -> int:
    """Return the FLOPs of scores and of weighted sums of values without a causal mask, over heads of a total width."""
    return 4 * known(model.layers, "layers") * work.seq * width * work.tokens


def matmul(model: Architecture, work: ConventionWork) -> Forward:
    """Return the FLOPs of each matrix product by its sizes: the convention of this package."""
    layers = 2 * known(model.layers, "layers") * model.layer_matrices * work.tokens
    share = 1 if work.causal == "full" else 2
    return Forward(layers, 2 * model.head * work.tokens, attention(model, work, model.attention_width) // share)


def parameters(model: Architecture, work: ConventionWork) -> Forward:
    """Count every parameter that processes a token as multiplied, and no attention."""
    return Forward(2 * (model.parameters - model.idle_parameters) * work.tokens, 0, 0)


def palm(model: Architecture, work: ConventionWork, looked_up: int = 0) -> Forward:
    """Count every parameter without those that are `looked_up`, and attention as wide as the heads."""
    layers = parameters(model, work).layers - 2 * looked_up * work.tokens
    return Forward(layers, 0, attention(model, work, model.attention_width))


def foundry(model: Architecture, work: ConventionWork) -> Forward:
    """Count every parameter, and attention as wide as the model."""
    return Forward(parameters(model, work).layers, 0, attention(model, work, model.width))


def megatron(model: Architecture, work: ConventionWork) -> Forward:
    """Count the layers of GPT-3: an MLP of two matrices of 4 x hidden, and separate keys for every head."""
    layers = 24 * known(model.layers, "layers") * model.width**2 * work.tokens
    return Forward(layers, 2 * model.head * work.tokens, attention(model, work, model.width))


_FULL = {"full": (1, 1)}

CONVENTIONS: dict[str, tuple[Callable[[Architecture, ConventionWork], Forward], Mapping[str, tuple[int, int]]]] = {
    "matmul": (matmul, {"selective": (0, 1), **_FULL}),
    "6n": (parameters, _FULL),
    "palm": (palm, {}),
    "nanogpt": (lambda model, work: palm(model, work, model.positions * model.width), {}),
    "megatron-eq3": (megatron, _FULL),
    "korthikanti": (megatron, {"selective": (0, 3), **_FULL}),
    "korthikanti-exact": (megatron, {"selective": (0, 1), **_FULL}),
    "torchtitan": (lambda model, work: palm(model, work, model.looked_up), {}),
    "llm-foundry": (foundry, _FULL),
}
"""Formula of each convention, and how often its backward repeats the layers' products and attention, by
`ConventionWork.recompute`. A convention doesn't define the recomputation that is missing."""


def step_flops(name: str, model: Architecture, work: ConventionWork) -> tuple[int | None, int | None]:
    """Return the model FLOPs and the executed FLOPs of an optimizer step. None: the convention can't tell."""
    formula, repetitions = CONVENTIONS[name]
    try:
        layers, head, scores = formula(model, work)
    except LookupError:
        return None, None
    flops = (3 if work.trainable == "all" else 2) * (layers + head) + 3 * scores
    again = (0, 0) if work.recompute == "none" else repetitions.get(work.recompute)
    return flops, None if again is None else flops + again[0] * layers + again[1] * scores
