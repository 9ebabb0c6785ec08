"""Advice on one fit: the facts are read when it begins, the rules are asked when somebody wants its summary."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from perf_callbacks.advice import table
from perf_callbacks.advice.facts import Facts
from perf_callbacks.core.records import Finding, Summary
from perf_callbacks.core.shaped_work import ShapedWork
from perf_callbacks.host import environment
from perf_callbacks.host.environment import Environment
from perf_callbacks.host.failures import describe
from perf_callbacks.session.recorder import Recorder, log

TENSOR_CORES = (7, 0)
"""Compute capability of the first devices with tensor cores (V100)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Optimizers and loaders that a fit trains with, as its integration knows them."""

    optimizers: tuple[Any, ...] = ()
    loaders: tuple[Any, ...] = ()
    log_every: int | None = None
    """Steps from one log line of the trainer to the next."""


def begin(recorder: Recorder, model: nn.Module | None, setup: Callable[[], Setup]) -> None:
    """Let a recorder's summary have findings. Without the facts it has none, and measuring goes on."""
    try:
        facts = read(model, setup(), door=recorder.run.door)
        facts = replace(
            facts, gc=recorder.config.gc, memory=recorder.engine.memory, tensor_cores=_has_tensor_cores(recorder.device)
        )
        machine = environment.read(accelerator=None if recorder.device.type == "cpu" else recorder.device.type)
    except Exception as error:  # noqa: BLE001 models and loaders may be anything
        log.info("perf_callbacks gives no advice: %s.", describe(error))
        return
    recorder.engine.advise = functools.partial(_advise, machine, facts, recorder.work)


def without_run(accelerator: str | None) -> tuple[Finding, ...]:
    """Give the advice that needs no run."""
    return table.findings(environment.read(accelerator=accelerator), read(None, Setup(), door=""))


def read(model: nn.Module | None, setup: Setup, *, door: str) -> Facts:
    """Read the facts about a fit. Nothing of it is held."""
    config = getattr(_inner(model), "config", None)
    optimizer = next(map(_inner, setup.optimizers), None)
    groups = getattr(optimizer, "param_groups", [])
    tensors = [tensor for group in groups for tensor in group["params"] if tensor.requires_grad]
    torchs = type(optimizer).__module__.startswith("torch.optim.")
    workers = [loader.num_workers for loader in map(_inner, setup.loaders) if hasattr(loader, "num_workers")]
    return Facts(
        door=door,
        workers=min(workers, default=None),
        attention=getattr(config, "_attn_implementation", None),
        sdpa=bool(getattr(_inner(model), "_supports_sdpa", False)),
        optimizer=type(optimizer).__name__ if torchs else None,
        fused=bool(groups) and all(group.get("fused") or group.get("foreach") for group in groups),
        tensors=len(tensors),
        threads=torch.get_num_threads(),
        log_every=setup.log_every,
        tf32=torch.get_float32_matmul_precision() != "highest",
        blocking=os.environ.get("CUDA_LAUNCH_BLOCKING") == "1",
        anomalies=torch.is_anomaly_enabled(),
    )


def _has_tensor_cores(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= TENSOR_CORES


def flat(loaders: Any) -> tuple[Any, ...]:
    """Return the loaders in lists, mappings and Lightning's `CombinedLoader`."""
    loaders = getattr(loaders, "flattened", loaders)
    if isinstance(loaders, dict):
        loaders = [*loaders.values()]
    if isinstance(loaders, list | tuple):
        return tuple([one for loader in loaders for one in flat(loader)])
    return () if loaders is None else (loaders,)


def _inner(outer: Any) -> Any:
    """Take off what accelerate, DDP, Lightning and torch.compile wrap around a model, an optimizer or a loader."""
    for name in ("_orig_mod", "module", "optimizer", "base_dataloader", "model"):
        inner = getattr(outer, name, None)
        if isinstance(inner, nn.Module | torch.optim.Optimizer | torch.utils.data.DataLoader) and not hasattr(
            outer, "config"
        ):
            return _inner(inner)
    return outer


def _advise(machine: Environment, facts: Facts, work: ShapedWork, summary: Summary) -> tuple[Finding, ...]:
    try:
        return table.findings(machine, replace(facts, work=work.counted), summary)
    except Exception as error:  # noqa: BLE001 a summary without advice is still one
        log.warning("perf_callbacks gives no advice: %s.", describe(error), exc_info=error)
        return ()
