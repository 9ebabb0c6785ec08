"""Record of profiled steps."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perf_callbacks.kernel.records.module_records import APART


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledOperation:
    """Calls of an operation with equal input shapes."""

    name: str
    """Operation of torch, such as "aten::mm". Without a link from kernel to operation: the kernel."""
    kind: str
    """Class of the operation, as in `Profile.class_seconds`."""
    calls: int
    """Number of kernels on the device. On a CPU: number of calls of the operation."""
    seconds: float
    """Part of `Profile.busy_seconds`."""
    shapes: str | None = None
    """Shapes of the inputs. None: not recorded."""
    flops: float | None = None
    """FLOPs of all calls, by the shapes of the inputs. None: no formula is known, or the trace has no shapes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledCopy:
    """Copies of tensors, by line and kind."""

    kind: str
    """"layout" (such as `contiguous`), a change of number format such as "float to bfloat16", "host to device",
    "device to host" or "device to device"."""
    operation: str
    """Operation that the program called, such as "aten::contiguous"."""
    line: str | None
    """Innermost Python function outside of torch: file, line where the function begins, name. None: not recorded."""
    calls: int
    seconds: float
    """Part of `Profile.busy_seconds`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Reduced trace of some steps.

    `busy_seconds` and all `idle_seconds` sum to `span_seconds`. Each moment of busy time is counted once, also if
    kernels ran on several streams: computation comes before communication, communication before copies by the
    device's copy engines, and kernels of equal priority share the moment equally.
    """

    timeline: str
    """"device": kernels on streams of a device. "cpu": the trace has no device, operations stand for kernels, and
    threads for streams."""
    device: str | None = None
    """Name of the device. None: unknown."""
    devices: int = 1
    """Number of devices in the trace. The record describes the busiest."""
    steps: int | None = None
    """Number of steps. None: the trace does not mark steps, and the span is the whole trace."""
    first_step: int | None = None
    """Number of the first step, as the profiler counts. None: the trace does not mark steps."""
    span_seconds: float
    """Time from the beginning of the first step to the end of the last step and of the work that the steps launched."""
    busy_seconds: float
    """Time in which the device ran a kernel, a copy or a collective."""
    idle_seconds: Mapping[str, float]
    """Idle time by cause. "data": the host waited for the DataLoader. "communication": the host was in a collective.
    "sync": the host had waited for the device, and so had queued no work. "host": the host ran Python or dispatched
    operations. "device": work was queued, but the device had not started the work. "unknown": the trace does not show
    the host, or work was queued behind work from before the recording."""
    class_seconds: Mapping[str, float]
    """Busy time by class: contraction, attention, normalization, elementwise, copy, communication, optimizer,
    softmax, reduction, indexing, other."""
    communication_seconds: float
    """Time in which the device ran a collective."""
    exposed_communication_seconds: float
    """Part of `communication_seconds` in which no computation ran."""
    kernels: int
    """Number of kernels, copies and collectives. On a CPU: number of operations."""
    sync_seconds: Mapping[str, float]
    """Idle time of cause "sync", by the innermost Python function outside of torch, or by the operation."""
    operations: tuple[ProfiledOperation, ...] = ()
    """The ten operations with the most time."""
    flops: float | None = None
    """FLOPs of all operations whose `ProfiledOperation.flops` are known. None: all are unknown."""
    copies: tuple[ProfiledCopy, ...] = ()
    """The ten copies with the most time."""
    module_seconds: Mapping[str, float] | None = None
    """Busy time by module path of at most three levels. A path does not include the time of longer paths. In a profile
    of a run: paths as in `ModuleWork`, such as "model.layers.*.mlp". In a trace with Python's stacks: classes and
    numbers, such as "Model_0/Block_3/Linear_2". In parentheses: time outside of modules, in the optimizer, and in
    further modules. None: the trace does not show modules."""
    module_backward_seconds: Mapping[str, float] | None = None
    """Part of `module_seconds` in the backward, with recomputation. Paths without such time are left out."""
    trace: str | None = None
    """Name of the gzipped trace, in the directory of the journal. None: no trace was kept."""

    @property
    def busy_share(self) -> float | None:
        """Part of the span in which the device was busy, from 0 to 1."""
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
