"""What a training step costs, by each of the formulas that people publish with.

All are made of the same three parts of a forward pass, and differ in what they put into them. Training is the forward
and twice as much backward: one half for the gradients of inputs, one for those of weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from perf_callbacks.core.architecture import Architecture, MissingError, known
from perf_callbacks.core.peaks import TERA, mfu


@dataclass(frozen=True, slots=True)
class Forward:
    """FLOPs of the forward of some tokens."""

    layers: int
    """Multiplying with matrices in the layers; by conventions that count parameters, with everything there is."""
    head: int
    """Multiplying with the output head, where it is told apart."""
    attention: int
    """Scores and their sums: what grows with the square of the sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What a step does, and how."""

    batch: int
    """Sequences in the step, over all devices."""
    seq: int
    """Tokens in a sequence."""
    recompute: str = "none"
    """"none", "selective" (the attention of each layer is done again), "full" (each layer is)."""
    trainable: str = "all"
    """"all", or "lora": no gradients of the weights; the adapters' own work is left out."""
    causal: str = "full"
    """"full": what a causal mask hides is counted as done; "half" of attention. By `matmul` alone: it is the one
    that the others leave no choice in."""

    @property
    def tokens(self) -> int:
        """Tokens in the step, over all devices."""
        return self.batch * self.seq


@dataclass(frozen=True, slots=True)
class Convention:
    """A way to count."""

    name: str
    forward: Callable[[Architecture, Work], Forward]
    remark: str
    """Why its matrices are not those of `matmul`."""
    again: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """How often the layers' matrices and their attention are counted again, by what is recomputed. What is not there,
    the convention doesn't say."""


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of a step over all devices. None: the convention can't say."""

    model: int | None
    """What the model asks for."""
    hardware: int | None
    """What is done for it, with what is done again."""


def _matmul(model: Architecture, work: Work) -> Forward:
    layers = 2 * known(model.layers, "layers") * model.layer_matrices
    attention = (4 if work.causal == "full" else 2) * known(model.layers, "layers") * work.seq * model.attention_width
    return Forward(layers * work.tokens, 2 * model.embedding * work.tokens, attention * work.tokens)


def _parameters(model: Architecture, work: Work) -> Forward:
    return Forward(2 * (model.parameters - model.idle_parameters) * work.tokens, 0, 0)


def _palm(model: Architecture, work: Work) -> Forward:
    attention = 4 * known(model.layers, "layers") * work.seq * model.attention_width
    return Forward(_parameters(model, work).layers, 0, attention * work.tokens)


def _nanogpt(model: Architecture, work: Work) -> Forward:
    palm = _palm(model, work)
    return Forward(palm.layers - 2 * model.positions * model.width * work.tokens, 0, palm.attention)


def _torchtitan(model: Architecture, work: Work) -> Forward:
    nanogpt = _nanogpt(model, work)
    looked_up = 0 if model.tied else model.embedding
    return Forward(nanogpt.layers - 2 * looked_up * work.tokens, 0, nanogpt.attention)


def _foundry(model: Architecture, work: Work) -> Forward:
    attention = 4 * known(model.layers, "layers") * work.seq * model.width
    return Forward(_parameters(model, work).layers, 0, attention * work.tokens)


def _megatron(model: Architecture, work: Work) -> Forward:
    layers, width = known(model.layers, "layers"), model.width
    head = 2 * model.embedding
    return Forward(
        24 * layers * width**2 * work.tokens, head * work.tokens, 4 * layers * work.seq * width * work.tokens
    )


_PLAIN = "takes the layers to be GPT-3's: an MLP of two matrices of 4 x hidden, and keys of its own for every head"
_EVERY = "multiplies with every parameter, those that are only looked up too"
_FULL = {"full": (1, 1)}

CONVENTIONS = (
    Convention("matmul", _matmul, "", {"selective": (0, 1), **_FULL}),
    Convention("6n", _parameters, _EVERY, _FULL),
    Convention("palm", _palm, _EVERY),
    Convention("nanogpt", _nanogpt, _EVERY),
    Convention("megatron-eq3", _megatron, _PLAIN, _FULL),
    Convention("korthikanti", _megatron, _PLAIN, {"selective": (0, 3), **_FULL}),
    Convention("korthikanti-exact", _megatron, _PLAIN, {"selective": (0, 1), **_FULL}),
    Convention("torchtitan", _torchtitan, "multiplies with norms and biases too"),
    Convention("llm-foundry", _foundry, _EVERY, _FULL),
)
"""Our own choice first."""

CLOSE = 0.005
"""Conventions that are nearer than this share of a step count the same."""

BY_NAME = {convention.name: convention for convention in CONVENTIONS}


def step_flops(
    architecture: Architecture,
    batch: int,
    seq: int,
    *,
    convention: str = "matmul",
    recompute: str = "none",
    trainable: str = "all",
    causal: str = "full",
) -> StepFlops:
    """The FLOPs of one optimizer step over all devices.

    >>> step_flops(Architecture(layers=1, hidden=4096, vocab=1), 1, 2048).model
    2680109924352
    """
    work = Work(batch=batch, seq=seq, recompute=recompute, trainable=trainable, causal=causal)
    return _step(BY_NAME[convention], architecture, work)


def _step(convention: Convention, architecture: Architecture, work: Work) -> StepFlops:
    try:
        forward = convention.forward(architecture, work)
    except MissingError:
        return StepFlops(None, None)
    passes = 3 if work.trainable == "all" else 2
    model = passes * (forward.layers + forward.head) + 3 * forward.attention
    again = (0, 0) if work.recompute == "none" else convention.again.get(work.recompute)
    if again is None:
        return StepFlops(model, None)
    return StepFlops(model, model + again[0] * forward.layers + again[1] * forward.attention)


def differences(name: str, architecture: Architecture, work: Work) -> list[str]:
    """In what a convention differs from `matmul` by half a percent or more of the step."""
    convention = BY_NAME[name]
    ours, theirs = CONVENTIONS[0].forward(architecture, work), convention.forward(architecture, work)
    least = CLOSE * (ours.layers + ours.head + ours.attention)
    found = []
    if abs(theirs.layers + theirs.head - ours.layers - ours.head) >= least:
        found.append(convention.remark)
    if abs(theirs.attention - ours.attention) >= least:
        in_full = "counts attention in full" if work.causal == "half" else "takes attention to be as wide as the model"
        found.append(in_full if theirs.attention else "leaves attention out")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Where a step ran, and how long it took."""

    gpus: int = 1
    step_seconds: float | None = None
    peak_flops_per_second: float | None = None
    """Of one device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A step by one convention. What it can't say is None; ratios are 0 to 1."""

    model_flops_per_step: int | None
    """Over all devices, as the next."""
    hardware_flops_per_step: int | None
    model_tflops_per_gpu: float | None
    mfu: float | None
    hfu: float | None


def compare(architecture: Architecture, work: Work, job: Job) -> dict[str, Result]:
    """A step by each convention, by its name."""
    return {convention.name: _result(_step(convention, architecture, work), job) for convention in CONVENTIONS}


def _result(flops: StepFlops, job: Job) -> Result:
    return Result(
        model_flops_per_step=flops.model,
        hardware_flops_per_step=flops.hardware,
        model_tflops_per_gpu=share(flops.model, job, TERA),
        mfu=share(flops.model, job, job.peak_flops_per_second),
        hfu=share(flops.hardware, job, job.peak_flops_per_second),
    )


def share(flops: int | None, job: Job, peak_flops_per_second: float | None) -> float | None:
    """What one device did of these FLOPs per second, as a share of a peak; None if one of them is unknown."""
    if flops is None or job.step_seconds is None:
        return None
    return mfu(flops / job.gpus, job.step_seconds, peak_flops_per_second)
