"""Journal record of profiled steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perf_callbacks.kernel.records.module_records import APART


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledOperation:
    """All calls of one operation with the same input shapes."""

    name: str
    """Operation of torch, such as "aten::mm". If the trace doesn't link the kernel to an operation, this is the name of
    the kernel."""
    kind: str
    """Class of the operation, as in `Profile.class_seconds`."""
    calls: int
    """Number of kernels on the device. On a CPU, this is the number of calls of the operation."""
    seconds: float
    """Seconds of these calls, as a part of `Profile.busy_seconds`."""
    shapes: str | None = None
    """Shapes of the inputs. None: not recorded."""
    flops: float | None = None
    """FLOPs of all calls, computed from the shapes of the inputs. None if no formula is known, or if the trace has no
    shapes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledCopy:
    """All copies of tensors of one kind, by one operation, on one line of the program."""

    kind: str
    """One of "layout" (such as `contiguous`), "host to device", "device to host", "device to device", or a change of
    number format such as "float to bfloat16"."""
    operation: str
    """Operation that the program called, such as "aten::contiguous"."""
    line: str | None
    """Innermost Python function outside of torch: file, line where the function begins, name. None: not recorded."""
    calls: int
    seconds: float
    """Seconds of these copies, as a part of `Profile.busy_seconds`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Reduced trace of some profiled steps.

    `busy_seconds` and all `idle_seconds` sum to `span_seconds`. Each moment of busy time counts once, even if kernels
    ran on several streams. A moment counts as computation if any computation ran. A moment without computation counts
    as communication if a collective ran, and as a copy if only a copy engine ran. If several kernels of one class ran
    at once, the time is divided equally among these kernels.
    """

    timeline: str
    """"device": the trace shows kernels on the streams of a device. "cpu": the trace has no device, so operations stand
    for kernels, and threads for streams."""
    device: str | None = None
    """Name of the device. None: unknown."""
    devices: int = 1
    """Number of devices in the trace. The record describes the busiest device."""
    steps: int | None = None
    """Number of profiled steps. None: the trace does not mark steps, so the record describes the whole trace."""
    first_step: int | None = None
    """Number of the first step in the profiler's count. None if the trace does not mark steps."""
    span_seconds: float
    """Time from the beginning of the first profiled step to the end of all work of the profiled steps."""
    busy_seconds: float
    """Time in which the device ran a kernel, a copy or a collective."""
    idle_seconds: Mapping[str, float]
    """Idle time by cause. "data": the host waited for the DataLoader. "communication": the host was in a collective.
    "sync": no work was queued, because the host had just waited for the device. "host": the host ran Python or
    dispatched operations. "device": work was queued, but the device had not started the work yet. "unknown": the trace
    does not show the host, or the device still ran work from before the recording."""
    class_seconds: Mapping[str, float]
    """Busy time by class: contraction, attention, normalization, elementwise, copy, communication, optimizer,
    softmax, reduction, indexing, other."""
    communication_seconds: float
    """Time in which the device ran a collective."""
    exposed_communication_seconds: float
    """Part of `communication_seconds` in which no computation ran."""
    kernels: int
    """Number of kernels, copies and collectives. On a CPU, this is the number of operations."""
    sync_seconds: Mapping[str, float]
    """Idle time of the cause "sync". The key is the innermost Python function outside of torch, or the operation."""
    operations: tuple[ProfiledOperation, ...] = ()
    """The ten operations with the most time."""
    flops: float | None = None
    """FLOPs of all operations whose `ProfiledOperation.flops` are known. None: all are unknown."""
    copies: tuple[ProfiledCopy, ...] = ()
    """The ten copies with the most time."""
    module_seconds: Mapping[str, float] | None = None
    """Maps each module path, of at most three levels, to its busy time. The time of a path does not include the time of
    submodules that have a path of their own. A profile of a run has paths as in `ModuleWork`, such as
    "model.layers.*.mlp". In a trace with Python's stacks, paths consist of classes and numbers, such as
    "Model_0/Block_3/Linear_2". A path in parentheses stands for no single module, as in `ModuleWork`. None if the trace
    does not show modules."""
    module_backward_seconds: Mapping[str, float] | None = None
    """Part of `module_seconds` that falls in the backward, including recomputation. Modules without such time are left
    out."""
    trace: str | None = None
    """File name of the gzipped trace in the directory of the journal. None if no trace was kept."""

    @property
    def busy_share(self) -> float | None:
        """Share of `span_seconds` in which the device was busy, from 0 to 1."""
        return self.busy_seconds / self.span_seconds if self.span_seconds > 0 else None

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds per step."""
        return self.span_seconds / self.steps if self.steps else None

    def heaviest_modules(self, most: int = 3) -> dict[str, float]:
        """Return the modules with the most time, and their seconds."""
        found = [item for item in (self.module_seconds or {}).items() if item[0] not in APART]
        return dict(sorted(found, key=lambda item: -item[1])[:most])

    def short(self) -> "Profile":
        """Return the profile for a summary: without operations, copies and lines, and with three modules."""
        return replace(
            self,
            operations=(),
            copies=(),
            sync_seconds={},
            module_seconds=self.heaviest_modules() or None,
            module_backward_seconds=None,
        )
