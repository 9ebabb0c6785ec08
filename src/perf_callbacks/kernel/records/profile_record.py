"""Journal record of profiled steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perf_callbacks.kernel.records.module_records import APART, SUMMED_MODULES


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledOperation:
    """All calls of one operation with the same input shapes."""

    name: str
    """Operation of torch, such as "aten::mm"; the kernel's name if the trace doesn't link it to an operation."""
    kind: str
    """Class, as in `Profile.class_seconds`."""
    calls: int
    """Kernels on the device; on a CPU, calls of the operation."""
    seconds: float
    """Part of `Profile.busy_seconds`."""
    shapes: str | None = None
    """Of the inputs. None: not recorded."""
    flops: float | None = None
    """Of all calls, by the shapes. None: no formula is known, or the trace has no shapes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledCopy:
    """All copies of tensors of one kind, by one operation, on one line of the program."""

    kind: str
    """"layout" (such as `contiguous`), "host to device", "device to host", "device to device", or a change of number
    format such as "float to bfloat16"."""
    operation: str
    """That the program called, such as "aten::contiguous"."""
    line: str | None
    """Innermost Python function outside of torch: file, its first line, name. None: not recorded."""
    calls: int
    seconds: float
    """Part of `Profile.busy_seconds`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Reduced trace of some profiled steps.

    `busy_seconds` and all `idle_seconds` sum to `span_seconds`. Each moment of busy time counts once, even if kernels
    ran on several streams. A moment counts as computation if any computation ran. A moment without computation counts
    as communication if a collective ran, and as a copy if only a copy engine ran. If several kernels of one class ran
    at once, the time is divided equally among these kernels.
    """

    timeline: str
    """"device": kernels on the streams of a device. "cpu": operations stand for kernels, and threads for streams."""
    device: str | None = None
    """Name. None: unknown."""
    devices: int = 1
    """In the trace. The record describes the busiest."""
    steps: int | None = None
    """Profiled steps. None: the trace does not mark steps, so the record describes all of it."""
    first_step: int | None = None
    """In the profiler's count. None if the trace does not mark steps."""
    span_seconds: float
    """From the beginning of the first profiled step to the end of all work of the profiled steps."""
    busy_seconds: float
    """Time in which the device ran a kernel, a copy or a collective."""
    idle_seconds: Mapping[str, float]
    """Idle time by cause. "data": the host waited for the DataLoader. "communication": the host was in a collective.
    "sync": nothing was queued, because the host had just waited for the device. "host": the host ran Python or
    dispatched operations. "device": queued work had not started yet. "unknown": the trace does not show the host, or
    work from before ran."""
    class_seconds: Mapping[str, float]
    """Busy time by class: contraction, attention, normalization, elementwise, copy, communication, optimizer,
    softmax, reduction, indexing, other."""
    communication_seconds: float
    """Time in which the device ran a collective."""
    exposed_communication_seconds: float
    """Part of `communication_seconds` in which no computation ran."""
    kernels: int
    """Kernels, copies and collectives; on a CPU, operations."""
    sync_seconds: Mapping[str, float]
    """Idle time of the cause "sync", by the innermost Python function outside of torch, or the operation."""
    operations: tuple[ProfiledOperation, ...] = ()
    """The ten with the most time."""
    flops: float | None = None
    """Of all operations whose `ProfiledOperation.flops` are known. None: all are unknown."""
    copies: tuple[ProfiledCopy, ...] = ()
    """The ten with the most time."""
    module_seconds: Mapping[str, float] | None = None
    """Busy time by module path of at most three levels, without submodules that have a path of their own. Paths are
    as in `ModuleWork`, such as "model.layers.*.mlp"; in a trace with Python's stacks, of classes and numbers, such
    as "Model_0/Block_3/Linear_2". In parentheses: no single module. None if the trace does not show modules."""
    module_backward_seconds: Mapping[str, float] | None = None
    """Part of `module_seconds` in the backward, with recomputation. Modules without such time are left out."""
    trace: str | None = None
    """Gzipped trace in the directory of the journal. None: no trace was kept."""

    @property
    def busy_share(self) -> float | None:
        """Share of `span_seconds` in which the device was busy, from 0 to 1."""
        return self.busy_seconds / self.span_seconds if self.span_seconds > 0 else None

    @property
    def step_seconds(self) -> float | None:
        return self.span_seconds / self.steps if self.steps else None

    def heaviest_modules(self) -> dict[str, float]:
        """Return the modules with the most time, and their seconds."""
        modules = [item for item in (self.module_seconds or {}).items() if item[0] not in APART]
        return dict(sorted(modules, key=lambda item: -item[1])[:SUMMED_MODULES])

    def short(self) -> "Profile":
        """For a summary: without operations, copies and lines, and with three modules."""
        return replace(
            self,
            operations=(),
            copies=(),
            sync_seconds={},
            module_seconds=self.heaviest_modules() or None,
            module_backward_seconds=None,
        )
