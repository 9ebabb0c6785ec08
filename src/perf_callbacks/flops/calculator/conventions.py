"""FLOPs of a training step by each published formula.

All formulas sum the same three parts of a forward pass, but each computes the parts in its own way. The backward takes
twice the FLOPs of the forward: once for the gradients of inputs, once for the gradients of weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from perf_callbacks.flops.calculator.architecture import Architecture, MissingError, known
from perf_callbacks.flops.peaks.peak_rates import TERA, mfu


@dataclass(frozen=True, slots=True)
class Forward:
    """FLOPs of the forward over some tokens."""

    layers: int
    """Products with the matrices in the layers. In conventions that count parameters: products with all parameters."""
    head: int
    """Products with the output head, if the convention counts the head separately."""
    attention: int
    """Attention scores and their weighted sums: the part that grows with the square of the sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConventionWork:
    """Size of a step, and options of its computation."""

    batch: int
    """Sequences in the step, over all devices."""
    seq: int
    """Tokens in a sequence."""
    recompute: str = "none"
    """Parts that the backward recomputes: "none", "selective" (the attention of each layer) or "full" (each layer)."""
    trainable: str = "all"
    """Trained weights: "all", or "lora": no gradients of the weights. The work of the adapters is left out."""
    causal: str = "full"
    """"full": masked scores count as computed. "half": half of attention counts. Only `matmul` uses this; the other
    conventions define how attention counts."""

    @property
    def tokens(self) -> int:
        """Tokens in the step, over all devices."""
        return self.batch * self.seq


@dataclass(frozen=True, slots=True)
class Convention:
    """A published way to count FLOPs."""

    name: str
    forward: Callable[[Architecture, ConventionWork], Forward]
    remark: str
    """Reason why the convention counts other FLOPs for the matrices than the convention `matmul`."""
    again: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Number of extra forwards of the layers' matrices, and of their attention, by `ConventionWork.recompute`. The
    convention doesn't define missing keys."""


@dataclass(frozen=True, slots=True)
class ModelStepFlops:
    """FLOPs of a step over all devices. None: not defined by the convention."""

    model: int | None
    """Model FLOPs."""
    hardware: int | None
    """Executed FLOPs: model FLOPs and recomputation."""


def _attention(model: Architecture, work: ConventionWork, width: int) -> int:
    """Count the scores of all heads and their weighted sums, without a causal mask."""
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
"""All conventions, ours first."""

CLOSE = 0.005
"""Largest difference, as a share of a step, between conventions that count as equal."""

BY_NAME = {convention.name: convention for convention in CONVENTIONS}


def step_flops(convention: Convention, architecture: Architecture, work: ConventionWork) -> ModelStepFlops:
    """Compute the FLOPs of an optimizer step over all devices."""
    try:
        forward = convention.forward(architecture, work)
    except MissingError:
        return ModelStepFlops(None, None)
    passes = 3 if work.trainable == "all" else 2
    model = passes * (forward.layers + forward.head) + 3 * forward.attention
    again = (0, 0) if work.recompute == "none" else convention.again.get(work.recompute)
    if again is None:
        return ModelStepFlops(model, None)
    return ModelStepFlops(model, model + again[0] * forward.layers + again[1] * forward.attention)


def differences(name: str, architecture: Architecture, work: ConventionWork) -> list[str]:
    """Describe the parts in which the conventions differ from `matmul` by half a percent of the step or more."""
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
    """Devices and duration of a step."""

    gpus: int = 1
    step_seconds: float | None = None
    peak_flops_per_second: float | None = None
    """Peak of one device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConventionFigures:
    """Figures of a step by a convention. None: not defined by the convention. Ratios are 0 to 1."""

    model_flops_per_step: int | None
    """Over all devices, like `hardware_flops_per_step`."""
    hardware_flops_per_step: int | None
    model_tflops_per_gpu: float | None
    mfu: float | None
    hfu: float | None


def compare(architecture: Architecture, work: ConventionWork, job: Job) -> dict[str, ConventionFigures]:
    """Compute the figures of a step by each convention. The keys are the conventions' names."""
    return {convention.name: _result(step_flops(convention, architecture, work), job) for convention in CONVENTIONS}


def _result(flops: ModelStepFlops, job: Job) -> ConventionFigures:
    return ConventionFigures(
        model_flops_per_step=flops.model,
        hardware_flops_per_step=flops.hardware,
        model_tflops_per_gpu=share(flops.model, job, TERA),
        mfu=share(flops.model, job, job.peak_flops_per_second),
        hfu=share(flops.hardware, job, job.peak_flops_per_second),
    )


def share(flops: int | None, job: Job, peak_flops_per_second: float | None) -> float | None:
    """Compute the share of the peak that each device reached (TFLOPS, if the peak is `TERA`); None: unknown input."""
    if flops is None or job.step_seconds is None:
        return None
    return mfu(flops / job.gpus, job.step_seconds, peak_flops_per_second)
