"""`perf-callbacks flops`: compute FLOPs, MFU and HFU of a training step by every convention."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from perf_callbacks.flops.calculator.architecture import LARGEST, Architecture, dimensions
from perf_callbacks.flops.calculator.conventions import CONVENTIONS, ConventionWork, step_flops
from perf_callbacks.flops.peaks import peak_rates as peaks
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.kernel.units import TERA
from perf_callbacks.report.layout import aligned
from perf_callbacks.report.units import DASH, percent

SUMMARY: str = "compute FLOPs, TFLOPS, MFU and HFU of a training step by each common formula"

_NUMBERS: dict[str, tuple[type, str]] = {
    "layers": (int, "layers"),
    "hidden": (int, "width of the model"),
    "heads": (int, "attention heads (default: attention is as wide as the model)"),
    "head-dim": (int, "width of a head (default: hidden / heads)"),
    "kv-heads": (int, "heads of keys and values (default: as many as of queries)"),
    "ffn": (int, "width of a gated MLP with three matrices (default: an MLP with two matrices of 4 x hidden)"),
    "experts": (int, "experts of the MLP"),
    "active-experts": (int, "experts that process a token"),
    "params": (float, "number of all parameters, such as 52e9 (default: the sum of the matrices)"),
    "vocab": (int, "tokens in the vocabulary"),
    "batch": (int, "sequences in an optimizer step, over all GPUs (default without --step-time: 1)"),
    "gpus": (int, "GPUs (default: 1)"),
    "step-time": (float, "seconds per optimizer step"),
    "tokens-per-second-per-gpu": (float, "give this instead of the step time"),
    "peak-tflops": (str, 'dense peak of a GPU: "312" or "bf16=312,fp32=19.5"'),
    "device": (str, 'name of a GPU with a known peak, such as "NVIDIA H100 80GB HBM3"'),
    "dtype": (str, "number format of most products (default: bf16)"),
}
_OPTIONS = {"recompute": ("none", "selective", "full"), "trainable": ("all", "lora"), "causal": ("full", "half")}
_FIGURES = ("model_flops_per_step", "hardware_flops_per_step", "model_tflops_per_gpu", "mfu", "hfu")
_HEADINGS = ("model FLOPs", "of matmul", "hardware FLOPs", "model TFLOPS/GPU", "hardware TFLOPS/GPU", "MFU", "HFU")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", metavar="CONFIG", help="config.json of a model; options win over it")
    parser.add_argument("--seq", type=int, required=True, help="tokens in a sequence")
    for name, (kind, description) in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=kind, help=description)
    for name, choices in _OPTIONS.items():
        parser.add_argument(f"--{name}", choices=choices, default=choices[0], help=f"default: {choices[0]}")
    parser.add_argument("--tied", action="store_true", default=None, help="the output head is the embedding")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    if any(not 0 < number <= LARGEST for number in vars(arguments).values() if type(number) in {int, float}):
        raise ConfigError(f"got an impossible number, wanted numbers above 0 and up to {LARGEST:g}.")
    rate, seconds, gpus = arguments.tokens_per_second_per_gpu, arguments.step_time, arguments.gpus or 1
    if seconds and (rate or not arguments.batch):
        raise ConfigError("--step-time: wanted --batch with it, and no --tokens-per-second-per-gpu.")
    options = {name: getattr(arguments, name) for name in _OPTIONS}
    work, model = ConventionWork(batch=arguments.batch or 1, seq=arguments.seq, **options), _model(arguments)
    seconds = work.tokens / (rate * gpus) if rate else seconds
    peak, source = _peak(arguments)

    def of_a_gpu(flops: int | None, per_second: float | None) -> float | None:
        return None if flops is None or not seconds or not per_second else flops / gpus / seconds / per_second

    rows, lines = {}, []
    for name in CONVENTIONS:
        flops, executed = step_flops(name, model, work)
        *tflops, mfu, hfu = [of_a_gpu(number, unit) for unit in (TERA, peak) for number in (flops, executed)]
        rows[name] = dict(zip(_FIGURES, (flops, executed, tflops[0], mfu, hfu), strict=True))
        ours = rows["matmul"]["model_flops_per_step"]
        forms = (".3e", ".3f", ".3e", *[".1f" if (tflops[0] or 0) >= 1 else ".3g"] * 2)
        shown = zip((flops, flops and ours and flops / ours, executed, *tflops), forms, strict=True)
        cells = [DASH if value is None else f"{value:{form}}" for value, form in shown]
        lines.append([name, *cells, percent(mfu), percent(hfu)])
    table = "\n".join(aligned([("", *_HEADINGS), *lines], right=range(1, 8)))
    print(json.dumps({"conventions": rows}, indent=2) if arguments.json else table)
    if source:
        print(source, file=sys.stderr)
    return 0


def _model(arguments: argparse.Namespace) -> Architecture:
    fields = dimensions(read_config(Path(arguments.path))) if arguments.path else {"gated": bool(arguments.ffn)}
    given = [(name, value) for name in Architecture.__slots__ if (value := getattr(arguments, name, None)) is not None]
    fields |= {name: round(value) if name == "params" else value for name, value in given}
    if "params" not in fields and not {"layers", "hidden", "vocab"} <= {*fields}:
        raise ConfigError("the model: wanted --params, or --layers, --hidden and --vocab, or CONFIG.")
    return Architecture(**fields)


def read_config(path: Path) -> dict[str, Any]:
    """Read the `config.json` of a model. Raise `ConfigError` if the file holds no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: wanted a config.json, got: {getattr(error, 'strerror', None) or error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: wanted a config.json, got {type(content).__name__}.")
    return content


def _peak(arguments: argparse.Namespace) -> tuple[float | None, str]:
    """Return the peak FLOP/s of a device, and a sentence about its source or about why it is unknown."""
    dtype, device = peaks.number_format(arguments.dtype or "bf16", "dtype"), arguments.device
    peak = peaks.given(arguments.peak_tflops) if arguments.peak_tflops else device and peaks.lookup(device)
    if not peak:
        return None, f"{peaks.unknown(device)}: give it with --peak-tflops." if device else ""
    rate = peak.peak_flops_per_second(dtype)
    return rate, f"peak: {peak.source}" if rate else f"No dense peak in {dtype} is known ({peak.source})."
