"""`perf-callbacks flops`: compute FLOPs, MFU and HFU of a training step by every convention."""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perf_callbacks.flops.calculator.architecture import LARGEST, Architecture, dimensions
from perf_callbacks.flops.calculator.conventions import ConventionFigures, ConventionWork, Job, compare
from perf_callbacks.flops.peaks import peak_rates as peaks
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.report import convention_table as report

SUMMARY: str = "compute FLOPs, TFLOPS, MFU and HFU of a training step by each common formula"

_MODEL: dict[str, tuple[type, str]] = {
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
}

LEAST = 1e-9
"""Smallest step time in seconds, and smallest rate, that the command accepts."""

_RUN: dict[str, tuple[type, str]] = {
    "batch": (int, "sequences in an optimizer step, over all GPUs"),
    "gpus": (int, "GPUs"),
    "step-time": (float, "seconds per optimizer step"),
    "tokens-per-second-per-gpu": (float, "give this instead of the step time"),
    "peak-tflops": (str, 'dense peak of a GPU: "312" or "bf16=312,fp32=19.5"'),
    "device": (str, 'name of a GPU with a known peak, such as "NVIDIA H100 80GB HBM3"'),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", metavar="CONFIG", help="config.json of a model on Hugging Face")
    model = parser.add_argument_group("the model", "these options override config.json")
    model.add_argument("--config", metavar="CONFIG", help="the same as CONFIG")
    _add(model, _MODEL)
    model.add_argument(
        "--tied", action="store_true", default=None, help="the output head uses the weights of the embedding"
    )
    run = parser.add_argument_group("the run")
    run.add_argument("--seq", type=int, required=True, help="tokens in a sequence")
    _add(run, _RUN)
    run.add_argument("--dtype", default="bf16", help="number format of most products (default: bf16)")
    run.add_argument(
        "--recompute", choices=("none", "selective", "full"), default="none", help="activation recomputation"
    )
    run.add_argument("--trainable", choices=("all", "lora"), default="all", help="lora: only adapters are trained")
    run.add_argument(
        "--causal",
        choices=("full", "half"),
        default="full",
        help="share of causal attention that the convention matmul counts",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add(group: Any, options: dict[str, tuple[type, str]]) -> None:
    for name, (kind, description) in options.items():
        group.add_argument(f"--{name}", type=kind, help=description)


def run(arguments: argparse.Namespace) -> int:
    model = _model(arguments)
    work = _work(arguments)
    peak = _peak(arguments)
    job = _job(arguments, work, peak)
    results = compare(model, work, job)
    if all(result.model_flops_per_step is None for result in results.values()):
        raise ConfigError(
            "the model: got too few sizes, wanted --params, or --layers, --hidden and --vocab, or CONFIG."
        )
    _check_shares(results.values())
    if arguments.json:
        print(json.dumps({"conventions": {name: asdict(result) for name, result in results.items()}}, indent=2))
    else:
        print(report.render(model, work, job, results, peak=None if peak is None else peak.source))
    return 0


def _model(arguments: argparse.Namespace) -> Architecture:
    if arguments.path and arguments.config:
        raise ConfigError("CONFIG: got two of them, wanted one.")
    path = arguments.path or arguments.config
    found: dict[str, Any] = {} if path is None else dimensions(read_config(Path(path)))
    flags = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in _MODEL}
    found |= {name: value for name, value in flags.items() if value is not None}
    _check(params=arguments.params)
    if arguments.params is not None:
        found["params"] = round(arguments.params)
    if arguments.ffn is not None and path is None:
        found["gated"] = True
    if arguments.tied:
        found["tied"] = True
    return Architecture(**found)


def read_config(path: Path) -> dict[str, Any]:
    """Read the `config.json` of a model. Raise `ConfigError` if the file holds no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: wanted a config.json, got: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{path}: wanted a config.json, got {error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: wanted a config.json, got {type(content).__name__}.")
    return content


def _work(arguments: argparse.Namespace) -> ConventionWork:
    rate = arguments.tokens_per_second_per_gpu
    if arguments.step_time is not None and rate is not None:
        raise ConfigError("--step-time and --tokens-per-second-per-gpu: got both, wanted one.")
    if arguments.step_time is not None and arguments.batch is None:
        raise ConfigError("--batch: is missing, wanted the sequences that --step-time is for.")
    batch = 1 if arguments.batch is None else arguments.batch
    _check(batch=batch, seq=arguments.seq, gpus=arguments.gpus, step_time=arguments.step_time, rate=rate)
    return ConventionWork(
        batch=batch,
        seq=arguments.seq,
        recompute=arguments.recompute,
        trainable=arguments.trainable,
        causal=arguments.causal,
    )


def _check(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name}: got {value}, wanted a number above 0.")
        if value is not None and not LEAST <= value <= LARGEST:
            raise ConfigError(f"{name}: got {value}, wanted a number from {LEAST:g} to {LARGEST:g}.")


def _check_shares(results: Iterable[ConventionFigures]) -> None:
    """Raise `ConfigError` if all conventions give an MFU above 1.

    Some conventions give an MFU above 1, because they count work that kernels skip.
    """
    least = min([result.mfu for result in results if result.mfu is not None], default=0.0)
    if least > 1:
        raise ConfigError(
            f"MFU: got {least:.4g} by the lowest convention, wanted at most 1: check time, GPUs and peak."
        )


def _peak(arguments: argparse.Namespace) -> peaks.Peaks | None:
    if arguments.peak_tflops is not None:
        return peaks.given(arguments.peak_tflops)
    if arguments.device is None:
        return None
    found = peaks.lookup(arguments.device)
    if found is None:
        print(f"{peaks.unknown(arguments.device)}: give it with --peak-tflops.", file=sys.stderr)
    return found


def _job(arguments: argparse.Namespace, work: ConventionWork, peak: peaks.Peaks | None) -> Job:
    gpus = 1 if arguments.gpus is None else arguments.gpus
    seconds, rate = arguments.step_time, arguments.tokens_per_second_per_gpu
    if rate is not None:
        seconds = work.tokens / (rate * gpus)
    dtype = peaks.number_format(arguments.dtype, "dtype")
    flops_per_second = None if peak is None else peak.peak_flops_per_second(dtype)
    if peak is not None and flops_per_second is None:
        print(
            f"There is no MFU: no dense peak in {arguments.dtype} is known ({peak.source}).",
            file=sys.stderr,
        )
    return Job(gpus=gpus, step_seconds=seconds, peak_flops_per_second=flops_per_second)
