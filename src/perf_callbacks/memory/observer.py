"""Measure the memory of a fit by part, and record the use of host and GPU."""

import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from typing_extensions import override

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.resources import CORES, GPU_MEMORY, RESIDENT, UTILIZATION, WATTS
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.failures import class_name, describe, guard, logs, message_of
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.process import device, processes
from perf_callbacks.kernel.process.device_use import DeviceUse
from perf_callbacks.kernel.process.nvml import Monitor
from perf_callbacks.kernel.process.watchdog import WATCHDOG
from perf_callbacks.kernel.records.fit_records import Record
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.machine_records import Memory, OutOfMemory, Use
from perf_callbacks.kernel.records.module_records import ModuleWork
from perf_callbacks.kernel.records.summary_parts import EnergySummary, MemorySummary
from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.kernel.units import GB, MB
from perf_callbacks.memory import out_of_memory_text
from perf_callbacks.memory.device_readings import DeviceReadings, RankUse
from perf_callbacks.memory.estimate import about_micro_batch, fitting_micro_batch, layers_of, layers_to_checkpoint
from perf_callbacks.memory.out_of_memory import (
    Holdings,
    coming_state_gb,
    failed_allocation,
    place,
    requested_bytes,
)
from perf_callbacks.memory.out_of_memory_text import EVALUATION
from perf_callbacks.memory.step_memory import StepMemory
from perf_callbacks.memory.use import MemoryReading, MemoryUse, Series, in_gb, leak, slope

PERIOD_SECONDS = 10.0

TRIES = 3  # steps that are measured until an optimizer updates weights: a gradient scaler may skip the first ones


def begin(recorder: Recorder, context: FitContext) -> "MemoryWatch":
    watch = MemoryWatch(recorder, context.model)
    with guard(logs(log.info, "perf_callbacks can't measure the state of optimizers: %s.")):
        watch.optimizers = tuple(map(weakref.ref, context.objects().optimizers))
    WATCHDOG.watch(watch)
    return watch


class MemoryWatch(Observer):
    """Measures the second step of a fit in the training thread, and writes `use` records in the watchdog's."""

    def __init__(self, recorder: Recorder, model: nn.Module | None) -> None:
        self.optimizers: tuple[weakref.ref[Any], ...] = ()
        self._recorder = recorder
        self._model = model
        self._trained = None if model is None else weakref.ref(model)
        self._modules: tuple[ModuleWork, ...] = ()  # of the last count
        self._first = recorder.run.step
        self._tries = 0
        self._measuring: StepMemory | None = None
        self._unwritten: Memory | None = None
        self._resident, self._anonymous = Series(), Series()
        self._began: float | None = None
        self._next = 0.0
        self._noted: tuple[float, processes.Processes] | None = None
        self._monitor: Monitor | None = None
        self._devices = device.of_model(model, recorder.device, recorder.run.devices)
        self._uuid = device.device_at(recorder.device).features().uuid
        self._ended = False
        self.use = MemoryUse()
        self._readings = DeviceReadings()
        self._rank_use = RankUse()
        allocator = device.allocators(self._devices)
        if allocator is not None:
            self.use.begin(allocator.retries)

    @property
    @override
    def due(self) -> int:
        if self._tries == TRIES:
            return NEVER
        return 0 if self._measuring is not None else self._first + 1

    @property
    @override
    def following(self) -> bool:
        return self._measuring is not None

    @override
    def operation(self, function: Any, output: Any, backward: int) -> None:
        measuring = self._measuring
        if measuring is not None:
            measuring.allocations.made(function, output, backward)

    @override
    def step_began(self) -> None:
        if self._tries == TRIES or self._measuring is not None or self._recorder.step <= self._first:
            return
        with guard(self._give_up):  # models may be anything; all other measuring goes on
            self._measuring = StepMemory(self._model, self._recorder.device.type)
            self._measuring.begin(self._model)

    @override
    def step_ended(self, step: int) -> None:
        measuring = self._measuring
        if measuring is None:
            return
        self._tries += 1
        with guard(self._give_up):
            if measuring.optimizer_seen or not measuring.hooked or self._tries == TRIES:
                if not measuring.hooked:
                    measuring.look(self._living())
                parts = measuring.parts(self._model, step, device.allocators(self._devices))
                self.use.parts = self._unwritten = self._with_batches(parts)
                self._tries = TRIES
                if self._uuid is None:
                    self._write(None)
        self._let_go()
        if self._tries == TRIES:
            self._model = None

    @override
    def loader_left(self, *, exhausted: bool) -> None:
        if not exhausted:
            self._let_go()

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Flops) and record.modules:
            self._modules = record.modules

    @override
    def exception_raised(self, error: BaseException) -> None:
        with guard(logs(log.info, "perf_callbacks can't report the failed allocation: %s.")):
            failure = failed_allocation(error)
            if failure is not None:
                report = self._report(failure)
                self._recorder.write(report)
                lines = out_of_memory_text.lines(report, self._recorder.run.rank)
                message = "perf_callbacks: " + "\n  ".join(["%s"] * len(lines))  # line ends in arguments are escaped
                log.warning(message, *lines)

    @override
    def metrics(self, kind: str) -> Mapping[str, float]:
        allocator = device.allocators(self._devices)
        if allocator is None:
            return {}
        return {
            "memory_allocated_peak_gb": round(allocator.peak_bytes / GB, 6),
            "memory_reserved_gb": round(allocator.reserved_bytes / GB, 6),
            "allocator_retries": self.use.retried(allocator.retries),
        }

    @override
    def resources(self) -> Mapping[str, float]:
        return self._rank_use.take()

    @override
    def summary(self) -> dict[str, MemorySummary | EnergySummary | None]:
        self.use.data_parallel = self._recorder.data_parallel
        return {"memory": self.use.summary(), "energy": self._readings.summary()}

    @override
    def facts(self) -> Mapping[str, Any]:
        return {"memory": self.use, "readings": self._readings}

    @override
    def closed(self) -> None:
        self._ended = True
        self._let_go()
        self._model = None
        if self._unwritten is not None:
            self._write(None)

    def tick(self, now: float) -> bool:
        """Write a `use` record every ten seconds. An error ends only these records."""
        if self._ended:
            if self._monitor is not None:
                self._monitor.close()
            return False
        if self._began is None:
            self._began, self._next, self._monitor = now, now, Monitor(self._uuid)
            weakref.finalize(self, self._monitor.close).atexit = False  # for a fit that nobody ends
        if self._monitor is not None and now >= self._next:
            self._next = now + PERIOD_SECONDS
            self._note(now - self._began, now, self._monitor.read())
        return True

    def _note(self, seconds: float, now: float, gpu: DeviceUse) -> None:
        usage, step, memory = processes.read(), self._recorder.step, self.use
        cores = read_mb = resident = anonymous = None
        if usage is not None:
            if self._noted is not None:
                cores, read_mb = _between(self._noted, (now, usage))
            self._noted = now, usage
            resident, anonymous = usage.resident_bytes / GB, in_gb(usage.anonymous_bytes)
            self._resident.add(MemoryReading(seconds, step, resident))
            memory.gb_per_hour = slope(self._resident.points)
            if anonymous is not None:
                self._anonymous.add(MemoryReading(seconds, step, anonymous))
                memory.leak = leak(self._anonymous.points)
        cpus = processes.allowed_cpus()
        self._rank_use.add(
            {
                CORES: cores,
                RESIDENT: resident,
                UTILIZATION: gpu.utilization,
                GPU_MEMORY: in_gb(gpu.memory_bytes),
                WATTS: None if (gpu.processes or 0) > 1 else gpu.watts,
            }
        )
        joules = None
        if step > self._first:
            joules = self._readings.add(step, gpu)
            if gpu.utilization is not None:
                memory.saw_gpu(gpu.utilization)
        if self._unwritten is not None:
            self._write(gpu.own_bytes)
        use = Use(
            step=step,
            cpu_load=cores / cpus if cores is not None and cpus else None,
            resident_gb=resident,
            anonymous_gb=anonymous,
            read_mb=read_mb,
            gpu_utilization=gpu.utilization,
            gpu_memory_gb=in_gb(gpu.memory_bytes),
            gpu_processes=gpu.processes,
            power_watts=gpu.watts,
            power_limit_watts=gpu.limit_watts,
            energy_joules=joules,
            sm_clock_mhz=gpu.sm_mhz,
            max_sm_clock_mhz=gpu.max_sm_mhz,
            temperature_celsius=gpu.celsius,
            tensor_activity=gpu.tensor_activity,
            memory_bandwidth_activity=gpu.bandwidth_activity,
            throttled_by=gpu.throttled_by or (),
        )
        if use != Use(step=step):
            self._recorder.write(use)

    def _living(self) -> list[Any]:
        return [optimizer for optimizer in (reference() for reference in self.optimizers) if optimizer is not None]

    def _with_batches(self, parts: Memory) -> Memory:
        """Add micro-batches and free memory; the latter is unknown on several devices."""
        batches = self._recorder.engine.batches
        room = self._devices[0].headroom() if len(self._devices) == 1 else None
        return replace(
            parts,
            micro_batch=max([batch.samples for batch in batches if batch.samples is not None], default=None),
            micro_batches=len(batches) or None,
            headroom_gb=in_gb(room),
        )

    def _report(self, error: BaseException) -> OutOfMemory:
        began, message = self._recorder.clock(), message_of(error)
        model = None if self._trained is None else self._trained()
        failure, kind = place(error), self._recorder.device.type
        parts = None if failure.stage == EVALUATION else self.use.parts
        held = Holdings(nn.Module() if model is None else model, self._living(), kind)
        held.add_failed_call(failure)
        path = None if failure.module is None else held.paths.by_id.get(id(failure.module))
        allocator = device.allocators(self._devices)
        allocated = 0.0 if allocator is None else allocator.allocated_bytes / GB
        batch = self._recorder.engine.batches[-1].samples if self._recorder.engine.batches else self._recorder.run.batch
        weights, gradients, optimizer = (held.gb(name) for name in ("weights", "gradients", "optimizer"))
        room, layers = None if parts is None else parts.headroom_gb, layers_of(self._modules)
        failed_layer = failure.layer(model) if model is not None and failure.stage == "forward" else None
        about = None
        if parts is None and allocator is not None and failed_layer is not None and batch and len(self._devices) == 1:
            left = (self._devices[0].headroom() or 0) / GB - coming_state_gb(self._living())
            used = allocated - weights - gradients - optimizer
            trained = (
                sum([parameter.nbytes for parameter in model.parameters() if parameter.requires_grad]) / GB
                if model
                else 0.0
            )
            room_of_update = used + left - max(0.0, trained - gradients)
            about = about_micro_batch(batch, used, left, *failed_layer) if room_of_update >= 0 else 0
        return OutOfMemory(
            step=self._recorder.step,
            device=kind,
            error=message.partition("\n")[0][:LONGEST_TEXT] or class_name(error),
            stage=failure.stage,
            module=path,
            requested_gb=in_gb(requested_bytes(message)),
            weights_gb=weights,
            gradients_gb=gradients,
            optimizer_gb=optimizer,
            other_gb=None if allocator is None else max(0.0, allocated - weights - gradients - optimizer),
            reserved_gb=None if allocator is None else allocator.reserved_bytes / GB,
            largest=held.largest(self._modules),
            micro_batch=batch,
            fitting_micro_batch=None if parts is None else fitting_micro_batch(parts, room),
            about_micro_batch=about,
            layers=layers.number if layers is not None else None if failed_layer is None else failed_layer[1],
            layers_to_checkpoint=None if parts is None else layers_to_checkpoint(parts, room, layers, batch),
            seconds=self._recorder.clock() - began,
        )

    def _write(self, own_bytes: int | None) -> None:
        """If NVML knows this process's memory, add the CUDA context's."""
        parts, self._unwritten = self._unwritten, None
        if parts is None:
            return
        allocator = device.allocators(self._devices)
        if own_bytes is not None and allocator is not None and len(self._devices) == 1:
            parts = replace(parts, context_gb=max(0, own_bytes - allocator.reserved_bytes) / GB)
            self.use.parts = parts
        self._recorder.write(parts)

    def _let_go(self) -> None:
        measuring, self._measuring = self._measuring, None
        if measuring is not None:
            measuring.end()

    def _give_up(self, error: Exception) -> None:
        let_pass(error)
        self._tries = TRIES
        self._let_go()
        log.info("perf_callbacks could not measure the parts of memory: %s.", describe(error))


def _between(
    before: tuple[float, processes.Processes], now: tuple[float, processes.Processes]
) -> tuple[float | None, float | None]:
    """Return the mean number of busy CPU cores, and the MB read from disks."""
    seconds, ran = now[0] - before[0], now[1].cpu_seconds - before[1].cpu_seconds
    cores = ran / seconds if seconds > 0 and ran >= 0 else None
    if now[1].read_bytes is None or before[1].read_bytes is None:
        return cores, None
    return cores, max(0, now[1].read_bytes - before[1].read_bytes) / MB
