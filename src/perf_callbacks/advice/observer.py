"""Advice on a fit: reads facts when the fit begins, and applies the rules to each summary."""

import os
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from perf_callbacks.advice import compilations, table
from perf_callbacks.advice.busy_lines import BusyLines
from perf_callbacks.advice.facts import Facts
from perf_callbacks.advice.job import CHANNEL, FindingNotes, verdict
from perf_callbacks.advice.loaded_batches import LoadedBatches
from perf_callbacks.advice.model import saved_by_fused
from perf_callbacks.advice.step_blocks import StepBlocks
from perf_callbacks.advice.update_times import UpdateTimes
from perf_callbacks.flops.peaks import peak_rates
from perf_callbacks.kernel.clock import perf_counter, unix_time
from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.failures import describe, guard, logs
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext, TrainingObjects
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.kernel.process import cpu_time, device as devices, processes
from perf_callbacks.kernel.records.fit_records import Finding, Record, Summary
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.kernel.records.shares import MAJORITY
from perf_callbacks.kernel.records.summary_parts import CpuSummary
from perf_callbacks.loaders.epoch_waits import EpochWaits
from perf_callbacks.ranks import exchange
from perf_callbacks.trials.results import of_run, with_gains

ADVICE = "The advice"

EAGER = ("attn_logit_softcapping", "output_attentions")
"""Only eager attention supports these settings of models."""

MOST_WANTED = 3.0
"""Upper limit for the CPU time that other programs need, divided by what they get."""


def begin(recorder: Recorder, context: FitContext) -> Observer:
    """If the fit's facts can't be read, return an observer that says why."""
    try:
        facts = read(context.model, context.objects(), integration=recorder.run.door, device=recorder.device)
        facts = replace(facts, gc=recorder.config.gc)
        since = MachineLoad(facts.cpus, facts.ranks_on_cpus)
        waits, lines = EpochWaits(recorder), BusyLines(recorder)
        updates = _updates(recorder, context.objects(), facts)
    except Exception as error:  # noqa: BLE001 models and loaders may be anything
        let_pass(error)
        log.info("perf_callbacks gives no advice: %s.", describe(error), exc_info=error)
        return _Failed(table.failure(ADVICE, error))
    if facts.workers and not facts.persistent:
        recorder.observe(waits)
    for observer in (lines, StepBlocks(), LoadedBatches(facts.workers or 0)):
        recorder.observe(observer)
    if updates is not None:
        recorder.observe(updates)
    return Advice(recorder, facts, since)


class _Failed(Observer):
    def __init__(self, failure: Finding) -> None:
        self._failure = failure

    @override
    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:
        return () if summary is None else (self._failure,)


class Advice(Observer):
    """Applies the rules to the facts that were read when the fit began, and to the facts of all observers."""

    def __init__(self, recorder: Recorder, facts: Facts, since: "MachineLoad") -> None:
        self._recorder = recorder
        self._failures = set[str]()
        self._ranks, self._notes = exchange.exchange_of(recorder), FindingNotes()
        if self._ranks is not None:
            self._ranks.open(CHANNEL, self._notes)
        self._gains = of_run(recorder.run)
        self._facts = facts
        self._since, self._began = since, unix_time()
        self._profiles: tuple[Profile, ...] = ()

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Profile):
            self._profiles += (record,)

    @override
    def findings(self, summary: Summary | None) -> tuple[Finding, ...]:
        recorder = self._recorder
        try:
            facts = replace(
                self._facts,
                work=recorder.engine.work.counted,
                compilations=compilations.since(self._began),
                profiles=self._profiles,
                **self._since.facts(),
                **recorder.observers.facts(),
            )
            own = with_gains(table.findings(facts, summary, self._fail), self._gains)
            if summary is None or self._ranks is None:
                return own
            self._notes.set(own, self._ranks)
            return verdict(own, self._notes.others, summary.stragglers)
        except Exception as error:  # noqa: BLE001 advice never ends the run
            let_pass(error)
            self._fail(ADVICE, error)
            return (table.failure(ADVICE, error),)

    def _fail(self, part: str, error: Exception) -> None:
        if part not in self._failures:
            self._failures.add(part)
            log.warning("perf_callbacks: %s failed: %s.", part, describe(error), exc_info=error)

    @override
    def summary(self) -> dict[str, CpuSummary | None]:
        with guard(logs(log.debug, "perf_callbacks: the load of the machine is unknown: %s.")):
            return {"cpu": self._since.summary()}
        return {}

    @override
    def before_summary(self) -> None:
        run = self._recorder.run
        if self._ranks is not None and run.rank == 0 and self._recorder.failure is None:
            self._notes.gather(self._ranks, run.world_size)


def _updates(recorder: Recorder, objects: TrainingObjects, facts: Facts) -> UpdateTimes | None:
    optimizer = next(map(_inner, objects.optimizers), None)
    if facts.fused or recorder.device.type != "cpu" or not saved_by_fused(facts.optimizer, facts.elements):
        return None
    return UpdateTimes(recorder, optimizer) if isinstance(optimizer, torch.optim.Optimizer) else None


def without_run(device: torch.device) -> tuple[Finding, ...]:
    return table.findings(read(None, TrainingObjects(), integration="", device=device))


def read(model: nn.Module | None, objects: TrainingObjects, *, integration: str, device: torch.device) -> Facts:
    """The result holds no reference to the fit's objects."""
    config = _text(getattr(_inner(model), "config", None))
    kind = devices.device_at(device)
    features, machine = kind.features(), environment.read(device=kind)
    optimizer = next(map(_inner, objects.optimizers), None)
    groups = getattr(optimizer, "param_groups", [])
    tensors = [tensor for group in groups for tensor in group["params"] if tensor.requires_grad]
    name = type(optimizer).__name__ if type(optimizer).__module__.startswith("torch.optim.") else None
    if name == "SGD" and not all(group.get("momentum") for group in groups):
        name = None  # nothing is saved without momentum
    if not objects.fusible or any(
        [getattr(module, "sparse", False) for module in model.modules()] if model is not None else ()
    ):
        name = None  # fused optimizers reject sparse gradients
    loaders = [loader for loader in map(_inner, objects.loaders) if hasattr(loader, "num_workers")]
    return Facts(
        integration=integration,
        options=objects.options,
        rarer=objects.rarer,
        checkpointing=_checkpointing(_inner(model)),
        resizable=hasattr(_inner(model), "resize_token_embeddings"),
        accelerator=machine.accelerator,
        cpus=machine.cpus,
        memory_available=machine.memory_available,
        local_ranks=machine.local_world_size,
        ranks_on_cpus=machine.processes_on_cpus,
        workers=min([loader.num_workers for loader in loaders], default=None),
        prefetch=max([loader.prefetch_factor or 2 for loader in loaders], default=2),
        iterable=any([_undivided(loader.dataset) for loader in loaders]),
        # workers of an iterable data set may have to begin anew in each epoch
        persistent=all(
            [loader.persistent_workers or isinstance(loader.dataset, IterableDataset) for loader in loaders]
        ),
        attention=getattr(config, "_attn_implementation", None),
        sdpa=bool(getattr(_inner(model), "_supports_sdpa", False))
        and not any([getattr(config, name, None) for name in EAGER]),
        optimizer=name,
        fused=bool(groups) and all(group.get("fused") or group.get("foreach") for group in groups),
        tensors=len(tensors),
        elements=sum([tensor.numel() for tensor in tensors]) / max(1, len(tensors)),
        threads=torch.get_num_threads(),
        threads_code=_threads_code(),
        log_every=objects.log_every,
        ddp=_has_ranks(model),
        nan_filter=objects.nan_filter,
        weights=Counter(
            [] if model is None else [tuple(tensor.shape) for tensor in model.parameters() if tensor.dim() > 1]
        ),
        vocabulary=_size(config, "vocab_size"),
        head=_head(config),
        device_type=kind.kind,
        half=features.half,
        tensor_cores=features.tensor_cores,
        multiprocessors=features.multiprocessors,
        tf32=kind.multiplies_in_tf32(),
        tf32_possible=features.tf32,
        peaks=peak_rates.lookup(kind.name, features.multiprocessors, features.architecture),
        clocks=kind.clocks,
        blocking=kind.blocking,
        anomalies=torch.is_anomaly_enabled(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        uncached=kind.uncached,
        expandable=kind.expandable,
    )


class MachineLoad:
    """CPU times that the system has counted since the fit began."""

    def __init__(self, cpus: int | None, sharing: int) -> None:
        """Share `cpus` CPUs with the other ranks of the `sharing` that may run on them."""
        self._own, self._sharing = cpus or 0, sharing
        self._used = processes.read()
        self._thread = threading.get_native_id()
        self._cpus = processes.cpu_mask()
        self._began, self._time = perf_counter(), cpu_time.read(self._thread)
        self._idled, self._throttled = cpu_time.idle(self._cpus), cpu_time.throttled()

    def facts(self) -> dict[str, Any]:
        seconds, thread = perf_counter() - self._began, self._of_thread()
        if thread is None:
            return {}
        ran, queued = thread
        idle, throttled = self._idle(seconds), cpu_time.throttled()
        stopped = 0.0 if throttled is None or self._throttled is None else throttled - self._throttled
        return {
            "left_cpus": self._left(self._others(idle, seconds), min(MOST_WANTED, 1 + queued / ran)),
            "idle_share": max(0.0, 1 - (ran + queued) / seconds),
            "starved_share": queued / seconds,
            "quota_reached": stopped / max(1, self._own or len(self._cpus)) > MAJORITY * queued,
            "free_cpus": None if idle is None else self._own * min(1.0, idle / len(self._cpus)),
        }

    def summary(self) -> CpuSummary | None:
        seconds, thread = perf_counter() - self._began, self._of_thread()
        idle, load = self._idle(seconds), None
        with suppress(AttributeError, OSError):  # Windows has no load average
            load = os.getloadavg()[0]
        part = CpuSummary(
            cpus=len(self._cpus) or None,
            no_cpu_share=None if thread is None else thread.queued / seconds,
            other_cpus=self._others(idle, seconds),
            idle_cpus=None if idle is None else min(idle, len(self._cpus)),
            load_average=load,
        )
        return None if part == CpuSummary(cpus=part.cpus) else part

    def _of_thread(self) -> cpu_time.CpuTime | None:
        now, before = cpu_time.read(self._thread), self._time
        return None if now is None or before is None or now.ran <= before.ran else now.since(before)

    def _left(self, others: float | None, wanted: float) -> float | None:
        """Return the number of the process's CPUs that other programs leave free.

        Other programs have all busy time minus that of this process, its workers, and the ranks on the same CPUs, which
        are assumed to be alike. `wanted` is the CPU time that a program needs, divided by what it gets, measured for
        the training thread and assumed for other programs.
        """
        if others is None:
            return None
        return min(self._own, max(0.0, len(self._cpus) - wanted * others) / self._sharing)

    def _others(self, idle: float | None, seconds: float) -> float | None:
        used = processes.read()
        if idle is None or used is None or self._used is None:
            return None
        busy = len(self._cpus) - idle
        return max(0.0, busy - self._sharing * (used.cpu_seconds - self._used.cpu_seconds) / seconds)

    def _idle(self, seconds: float) -> float | None:
        idle = cpu_time.idle(self._cpus)
        return None if idle is None or self._idled is None or not self._own else (idle - self._idled) / seconds


def _checkpointing(model: nn.Module | None) -> str | None:
    for name in ("activation_checkpointing", "gradient_checkpointing"):  # in transformers 5, and before
        if hasattr(model, f"{name}_disable"):
            return name if getattr(model, f"is_{name}", False) else None
    return None


def _undivided(dataset: object) -> bool:
    """True for an iterable data set of the program. One of `datasets` divides its samples itself."""
    return isinstance(dataset, IterableDataset) and not type(dataset).__module__.startswith("datasets.")


def _threads_code() -> str:
    """Code that sets the number of threads. A program that sets it itself ignores the variable."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    ignored = wanted.isdigit() and int(wanted) != torch.get_num_threads()
    return "torch.set_num_threads({})" if ignored else "OMP_NUM_THREADS={}"


def _has_ranks(model: nn.Module | None) -> bool:
    group: Any = getattr(model, "process_group", None)
    return isinstance(model, DistributedDataParallel) and group is not None and group.size() > 1


def _text(config: Any) -> Any:
    with suppress(Exception):
        return config.get_text_config()
    return config


def _size(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and value > 0 else None


def _head(config: Any) -> int | None:
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    return _size(config, "head_dim") or (hidden // heads if hidden and heads else None)


def _inner(outer: Any) -> Any:
    """Unwrap a model, an optimizer or a loader from accelerate, DDP, Lightning and torch.compile."""
    for name in ("_orig_mod", "module", "optimizer", "base_dataloader", "model"):
        inner = getattr(outer, name, None)
        if isinstance(inner, nn.Module | torch.optim.Optimizer | DataLoader) and not hasattr(outer, "config"):
            return _inner(inner)
    return outer
