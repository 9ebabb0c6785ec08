"""Estimate of the memory of a training step from a config.json, for `perf-callbacks memory`."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perf_callbacks.commands.flops import read_config
from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.memory.estimate import SHARDED, largest, on_rank
from perf_callbacks.report import memory_table
from perf_callbacks.report.layout import card

LARGEST = 1_000_000

OPTIMIZERS = ("adamw", "adamw-fused", "sgd", "adafactor")
DTYPES = ("bf16", "bf16-mixed", "fp16", "fp16-mixed", "fp32")

_NUMBERS = {
    "seq": (1, "tokens in a sequence"),
    "ranks": (1, "ranks with their own samples, which also share what is sharded"),
    "accumulate": (1, "micro-batches in an optimizer step"),
    "checkpointing": (0, "layers to checkpoint; without a number all"),
}


def add_arguments(group: Any) -> None:
    group.add_argument("--seq", type=int, help="tokens in a sequence")
    group.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="optimizer of torch (default: adamw)")
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="bf16",
        help="format of weights and products; -mixed: weights in fp32 and autocast (default: bf16)",
    )
    group.add_argument(
        "--checkpointing",
        type=int,
        nargs="?",
        const=LARGEST,
        default=0,
        metavar="LAYERS",
        help=_NUMBERS["checkpointing"][1],
    )
    group.add_argument("--accumulate", type=int, default=1, metavar="N", help=_NUMBERS["accumulate"][1])
    group.add_argument("--ranks", type=int, default=1, help=_NUMBERS["ranks"][1])
    group.add_argument("--sharding", choices=(*SHARDED,), default=None, help="default: ddp with several ranks")
    group.add_argument("--cpu", action="store_true", help="the optimizer updates weights one by one, as on a CPU")


@dataclass(frozen=True, slots=True)
class Estimator:
    """Memory of a rank. `sizes` takes a micro-batch and a number of checkpointed layers, and caches parts in GB."""

    sizes: Callable[[int, int], dict[str, float]]
    layers: int
    parameters: int


def estimator(arguments: argparse.Namespace) -> Estimator:
    from perf_callbacks.commands.simulated_model import simulation, unpadded  # noqa: PLC0415 imports torch

    config = read_config(arguments.path)
    kind = arguments.optimizer, arguments.dtype
    try:
        simulated = simulation(config, *kind, accelerator=not arguments.cpu)

        @cache
        def sizes(batch: int, checkpointed: int) -> dict[str, float]:
            with unpadded():
                step = simulated.step(batch, arguments.seq, checkpointed=checkpointed, accumulated=arguments.accumulate)
            model = simulated.layers, simulated.layer_bytes
            return on_rank(step, arguments.ranks, _sharding(arguments), *model, accumulated=arguments.accumulate)

        sizes(arguments.batch or 1, min(arguments.checkpointing, simulated.layers))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{arguments.path}: the model can't be simulated: {describe(error)}") from error
    return Estimator(sizes, simulated.layers, simulated.parameters)


def run(arguments: argparse.Namespace) -> int:
    if arguments.seq is None:
        raise ConfigError("--seq: is missing, wanted the tokens in a sequence.")
    for name, (least, _) in _NUMBERS.items():
        value = getattr(arguments, name)
        if not least <= value <= LARGEST:
            raise ConfigError(f"--{name}: got {value}, wanted a whole number from {least} to {LARGEST:,}.")
    estimate = facts(arguments, estimator(arguments))
    print(json.dumps(estimate, indent=2, allow_nan=False) if arguments.json else render(estimate, arguments.path))
    return 0


def facts(arguments: argparse.Namespace, model: Estimator) -> dict[str, Any]:
    """For JSON, with the micro-batch and checkpointing that fit the memory limit."""
    batch, limit = arguments.batch or 1, arguments.limit_gb
    checkpointed = min(arguments.checkpointing, model.layers)
    sizes = model.sizes(batch, checkpointed)
    fits = enough = None
    if limit is not None:
        fits = _fitting(model, limit, checkpointed, batch)
        unchecked = largest(lambda number: model.sizes(batch, model.layers - number)["peak"], limit, 1, model.layers)
        if unchecked or model.sizes(batch, model.layers)["peak"] <= limit:
            enough = model.layers - unchecked
    return {
        "parameters": model.parameters,
        "micro_batch": batch,
        "seq": arguments.seq,
        "optimizer": arguments.optimizer,
        "dtype": arguments.dtype,
        "ranks": arguments.ranks,
        "sharding": _sharding(arguments),
        "accumulated": arguments.accumulate,
        "checkpointed_layers": checkpointed,
        "layers": model.layers,
        "gb": sizes,
        "limit_gb": limit,
        "fitting_micro_batch": fits,
        "layers_to_checkpoint": enough,
        "global_batch": batch * arguments.accumulate * arguments.ranks,
        "largest_global_batch": None if fits is None else fits * arguments.accumulate * arguments.ranks,
    }


def _fitting(model: Estimator, limit: float, checkpointed: int, batch: int) -> int:
    """The search begins at a guess from two simulated micro-batches."""
    peak, double_peak = model.sizes(batch, checkpointed)["peak"], model.sizes(2 * batch, checkpointed)["peak"]
    per_sample = (double_peak - peak) / batch
    guess = int(batch + (limit - peak) / per_sample) if per_sample > 0 else LARGEST
    return largest(lambda number: model.sizes(number, checkpointed)["peak"], limit, guess, LARGEST)


def _sharding(arguments: argparse.Namespace) -> str:
    return str(arguments.sharding or ("ddp" if arguments.ranks > 1 else "none"))


def render(facts: dict[str, Any], path: Path) -> str:
    columns, several = terminal.columns(), facts["ranks"] > 1
    title = (
        f"{path}: {facts['parameters']:,} parameters, micro-batch {facts['micro_batch']} of {facts['seq']} tokens, "
        f"{facts['dtype']}, {facts['optimizer']}"
    )
    if facts["checkpointed_layers"]:
        title += f", {facts['checkpointed_layers']} of {facts['layers']} layers checkpointed"
    if several:
        title += f", each of {facts['ranks']} ranks with {facts['sharding']}"
    lines = [title, *memory_table.table(facts["gb"], ESTIMATED if several else ESTIMATED[:-2] + ESTIMATED[-1:])]
    lines.append("simulated on fake tensors" + (", divided among ranks by formulas" if several else ""))
    if facts["limit_gb"] is not None:
        lines += _limits(facts)
    factors = (
        f"micro-batch {facts['micro_batch']} x {facts['accumulated']} accumulated x {facts['ranks']} data-parallel"
    )
    lines.append(f"global batch {facts['global_batch']:,}: {factors}")
    return card(lines, columns)


ESTIMATED = ("weights", "gradients", "optimizer", "activations", "temporary", "exchange", "peak")


def _limits(facts: dict[str, Any]) -> list[str]:
    fits, enough, limit = (
        facts["fitting_micro_batch"],
        facts["layers_to_checkpoint"],
        f"{facts['limit_gb']:g} GB",
    )
    lines = [f"micro-batch {fits} would fit in {limit}" if fits else f"no micro-batch fits in {limit}"]
    if fits:
        lines[0] += f", global batch {facts['largest_global_batch']:,}"
    if enough is None:
        lines.append(f"micro-batch {facts['micro_batch']} doesn't fit, even with all layers checkpointed")
    elif enough:
        lines.append(
            f"for micro-batch {facts['micro_batch']}, checkpointing {enough} of {facts['layers']} layers is enough"
        )
    else:
        lines.append(f"micro-batch {facts['micro_batch']} fits without checkpointing")
    return lines
