"""Compute the FLOPs of a training step by several published formulas.

All formulas add up the FLOPs of layers, output head and attention, but each formula computes these FLOPs in its own
way. The backward takes twice the FLOPs of the forward: once for the gradients of inputs, once for the gradients of
weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from perf_callbacks.flops.calculator.architecture import Architecture, MissingError, known
from perf_callbacks.flops.peaks.peak_rates import TERA


@dataclass(frozen=True, slots=True)
class Forward:
    """FLOPs of a forward over all tokens of a step."""

    layers: int
    """FLOPs of products with layer matrices. Conventions that count parameters put all counted parameters here."""
    head: int
    """FLOPs of products with the output head, if the convention counts the head separately."""
    attention: int
    """FLOPs of attention: scores, and weighted sums of values.

    These FLOPs grow with the square of the sequence length.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class ConventionWork:
    """Size of a training step, and options that change its FLOPs."""

    batch: int
    """Number of sequences in the step, over all devices."""
    seq: int
    """Number of tokens in a sequence."""
    recompute: str = "none"
    """Part of each layer that the backward recomputes: "none", "selective" (the attention) or "full" (the layer)."""
    trainable: str = "all"
    """"all" if all weights are trained, "lora" if no gradients of weights are computed. The FLOPs of LoRA's adapters
    are left out."""
    causal: str = "full"
    """"full" counts masked attention scores like unmasked scores. "half" counts half of attention.

    Only the convention `matmul` uses this field.
    """

    @property
    def tokens(self) -> int:
        return self.batch * self.seq


@dataclass(frozen=True, slots=True)
class Convention:
    """Published convention for counting the FLOPs of a step."""

    name: str
    forward: Callable[[Architecture, ConventionWork], Forward]
    remark: str
    """Why this convention's FLOPs of matrix products differ from the FLOPs of the convention `matmul`."""
    again: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Two numbers of repetitions for each value of `ConventionWork.recompute`.

    The first number says how often the backward repeats the layer's matrix products. The second number says how often
    the backward repeats attention. If a value is missing, the convention doesn't define this kind of recomputation.
    """


def _attention(model: Architecture, work: ConventionWork, width: int) -> int:
    """Return the FLOPs of attention in all heads, without a causal mask: scores, and weighted sums of values."""
    return 4 * known(model.layers, "layers") * work.seq * width * work.tokens


def _matmul(model: Architecture, work: ConventionWork) -> Forward:
    layers = 2 * known(model.layers, "layers") * model.layer_matrices
    attention = _attention(model, work, model.attention_width) // (1 if work.causal == "full" else 2)
    return Forward(layers * work.tokens, 2 * model.head * work.tokens, attention)


def _parameters(model: Architecture, work: ConventionWork) -> Forward:
    return Forward(2 * (model.parameters - model.idle_parameters) * work.tokens, 0, 0)


def _palm(model: Architecture, work: ConventionWork) -> Forward:
    return Forward(_parameters(model, work).layers, 0, _attention(model, work, model.attention_width))


def _nanogpt(model: Architecture, work: ConventionWork) -> Forward:
    palm = _palm(model, work)
    return Forward(palm.layers - 2 * model.positions * model.width * work.tokens, 0, palm.attention)


def _torchtitan(model: Architecture, work: ConventionWork) -> Forward:
    nanogpt = _nanogpt(model, work)
    looked_up = 0 if model.tied else model.embedding
    return Forward(nanogpt.layers - 2 * looked_up * work.tokens, 0, nanogpt.attention)


def _foundry(model: Architecture, work: ConventionWork) -> Forward:
    return Forward(_parameters(model, work).layers, 0, _attention(model, work, model.width))


def _megatron(model: Architecture, work: ConventionWork) -> Forward:
    layers = 24 * known(model.layers, "layers") * model.width**2
    return Forward(layers * work.tokens, 2 * model.head * work.tokens, _attention(model, work, model.width))


_PLAIN = "assumes the layers of GPT-3: an MLP of two matrices of 4 x hidden, and separate keys for every head"
_EVERY = "counts every parameter as multiplied, also embeddings that are only looked up"
_FULL = {"full": (1, 1)}

CONVENTIONS = (
    Convention("matmul", _matmul, "", {"selective": (0, 1), **_FULL}),
    Convention("6n", _parameters, _EVERY, _FULL),
    Convention("palm", _palm, _EVERY),
    Convention("nanogpt", _nanogpt, _EVERY),
    Convention("megatron-eq3", _megatron, _PLAIN, _FULL),
    Convention("korthikanti", _megatron, _PLAIN, {"selective": (0, 3), **_FULL}),
    Convention("korthikanti-exact", _megatron, _PLAIN, {"selective": (0, 1), **_FULL}),
    Convention("torchtitan", _torchtitan, "counts norms and biases as multiplied"),
    Convention("llm-foundry", _foundry, _EVERY, _FULL),
)
"""All conventions. The convention of this package, `matmul`, comes first."""

CLOSE = 0.005
"""Two conventions count as equal if they differ by less than this share of a step's FLOPs."""

BY_NAME = {convention.name: convention for convention in CONVENTIONS}


def step_flops(
    convention: Convention, architecture: Architecture, work: ConventionWork
) -> tuple[int | None, int | None]:
    """Compute the model FLOPs and the executed FLOPs of an optimizer step over all devices, by a convention.

    None means that the convention doesn't define the FLOPs.
    """
    try:
        forward = convention.forward(architecture, work)
    except MissingError:
        return None, None
    passes = 3 if work.trainable == "all" else 2
    model = passes * (forward.layers + forward.head) + 3 * forward.attention
    again = (0, 0) if work.recompute == "none" else convention.again.get(work.recompute)
    if again is None:
        return model, None
    return model, model + again[0] * forward.layers + again[1] * forward.attention


def differences(name: str, architecture: Architecture, work: ConventionWork) -> list[str]:
    """Return the reasons why a convention differs from `matmul` by at least half a percent of a step's FLOPs."""
    convention = BY_NAME[name]
    ours, theirs = CONVENTIONS[0].forward(architecture, work), convention.forward(architecture, work)
    least = CLOSE * (ours.layers + ours.head + ours.attention)
    found = []
    if abs(theirs.layers + theirs.head - ours.layers - ours.head) >= least:
        found.append(convention.remark)
    if abs(theirs.attention - ours.attention) >= least:
        in_full = "counts attention in full" if work.causal == "half" else "assumes attention as wide as the model"
        found.append(in_full if theirs.attention else "leaves attention out")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Number of devices, their peak, and the duration of a step."""

    gpus: int = 1
    step_seconds: float | None = None
    peak_flops_per_second: float | None = None
    """Peak FLOP/s of one device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConventionFigures:
    """FLOPs, MFU and HFU of a step by one convention.

    None means that the convention defines no value, or that an input is missing. MFU and HFU are ratios from 0 to 1.
    """

    model_flops_per_step: int | None
    """Model FLOPs of a step over all devices. `hardware_flops_per_step` is over all devices too."""
    hardware_flops_per_step: int | None
    """Model FLOPs plus recomputation."""
    model_tflops_per_gpu: float | None
    mfu: float | None
    hfu: float | None


def compare(architecture: Architecture, work: ConventionWork, job: Job) -> dict[str, ConventionFigures]:
    """Return the FLOPs, MFU and HFU of a step by each convention. The keys are the names of the conventions."""
    found = {convention.name: step_flops(convention, architecture, work) for convention in CONVENTIONS}
    return {
        name: ConventionFigures(
            model_flops_per_step=model,
            hardware_flops_per_step=hardware,
            model_tflops_per_gpu=share(model, job, TERA),
            mfu=share(model, job, job.peak_flops_per_second),
            hfu=share(hardware, job, job.peak_flops_per_second),
        )
        for name, (model, hardware) in found.items()
    }


def share(flops: int | None, job: Job, peak_flops_per_second: float | None) -> float | None:
    """Return the share of the peak that each device reached, or None if an input is unknown.

    If the peak is `TERA`, the result is the TFLOPS of each device.
    """
    if flops is None or job.step_seconds is None or peak_flops_per_second is None:
        return None
    return flops / job.gpus / job.step_seconds / peak_flops_per_second
