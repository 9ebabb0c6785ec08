"""Journal records about the machine: its use by a rank, and the memory of a step."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Use of the machine by this rank. Unknown fields are not written.

    GB are 10^9 bytes, MB 10^6. Processes that the rank has started, such as loader workers, are included. Memory that
    two processes share is counted twice. Figures of the GPU cover all processes on the GPU.
    """

    step: int
    """Optimizer steps done."""
    cpu_load: float | None = None
    """CPU time since the previous record, as a share, from 0 to 1, of all CPUs that the rank may use."""
    resident_gb: float | None = None
    """Host memory in use."""
    anonymous_gb: float | None = None
    """`resident_gb` minus file pages and shared memory, to find leaks."""
    read_mb: float | None = None
    """From disks, not from the page cache, since the previous record."""
    gpu_utilization: float | None = None
    """Share, from 0 to 1, of NVML's most recent sampling period in which a kernel ran."""
    gpu_memory_gb: float | None = None
    """In use on the GPU."""
    gpu_processes: int | None = None
    """Processes that compute on the GPU, as far as the driver shows them."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Of the whole GPU since the previous record, from its own counter."""
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    tensor_activity: float | None = None
    """Share of time, from 0 to 1, in which tensor cores worked since the previous record. Only of Hopper and later."""
    memory_bandwidth_activity: float | None = None
    """Mean use of the GPU memory's bandwidth since the previous record, from 0 to 1. Only of Hopper and later."""
    throttled_by: tuple[str, ...] = ()
    """Reasons for a lower clock, such as "power cap" or "heat". Empty: none, or unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of one optimizer step on this rank's device, split by what it holds, in GB of 10^9 bytes.

    Fields that are unknown or zero are None and are not written. Each part is measured at its own maximum during the
    step, so the sum of the parts may exceed `peak_gb`.
    """

    step: int
    device: str
    """Kind, such as "cpu" or "cuda". Tensors elsewhere, as with offloading, are not counted."""
    source: str | None = None
    """"operations": the tensors of the counted step were followed. "allocator": only the device's allocator was
    read, and `activations_gb` includes the temporary memory. None: neither is known."""
    weights_gb: float | None = None
    """Parameters and buffers. In weights, gradients and optimizer state, each storage counts once."""
    gradients_gb: float | None = None
    optimizer_gb: float | None = None
    activations_gb: float | None = None
    """Tensors that the forward made and that are alive when the backward begins."""
    temporary_gb: float | None = None
    """Peak of all other tensors that the step makes, without gradients and optimizer state."""
    context_gb: float | None = None
    """Of the process on the GPU beyond torch's allocator: context, libraries, communicators."""
    peak_gb: float | None = None
    """Largest sum of all parts at any moment of the step; with an allocator, of all tensors since the program began."""
    micro_batch: int | None = None
    """Samples in the largest micro-batch of the step."""
    micro_batches: int | None = None
    """Number of micro-batches of the step."""
    headroom_gb: float | None = None
    """What this process could still allocate at the end of the step; on a CPU, host memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldMemory:
    """Memory that tensors of one kind hold in a module, without its submodules. Layers of a list share one path."""

    path: str
    """As in `ModuleWork`."""
    kind: str
    """One of weights, gradients, optimizer, activations (measured in an earlier step), failed call (local variables
    of the functions in which the allocation failed)."""
    gb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """Failed allocation that ended the fit, and the memory of this rank at that moment, in GB of 10^9 bytes.

    Fields that are unknown are None and are not written.
    """

    step: int
    """Optimizer steps done."""
    device: str
    """Kind, as in `Memory`."""
    error: str
    """First line of the framework's message."""
    stage: str | None = None
    """forward, backward, optimizer or evaluation. None: outside of all four."""
    module: str | None = None
    """In whose forward the allocation failed; path as in `ModuleWork`."""
    requested_gb: float | None = None
    weights_gb: float | None = None
    gradients_gb: float | None = None
    optimizer_gb: float | None = None
    other_gb: float | None = None
    """All other tensors. None: the device has no allocator with statistics."""
    reserved_gb: float | None = None
    """Held by the device's allocator, used or free."""
    largest: tuple[HeldMemory, ...] = ()
    """The largest first."""
    micro_batch: int | None = None
    """Samples in the micro-batch that failed."""
    fitting_micro_batch: int | None = None
    """Largest micro-batch that would have fitted, by the memory of an earlier step. None: none was measured."""
    about_micro_batch: int | None = None
    """The same, estimated from the layers that had run. None: an earlier step was measured, or no estimate is
    possible, for example because the allocation failed outside of the forward."""
    layers: int | None = None
    """Layers of the list whose checkpointing would free most memory or, if unknown, of the failed layer."""
    layers_to_checkpoint: int | None = None
    """Layers whose checkpointing would have avoided the failure. None: unknown, or all would not have been enough."""
    seconds: float = 0.0
    """That it took to make this record."""
