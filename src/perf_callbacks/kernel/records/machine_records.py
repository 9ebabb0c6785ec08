"""Journal records about the machine: its use by a rank, and the memory of a step."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Use of the machine by this rank. Unknown fields are not written.

    GB are 10^9 bytes, MB 10^6. Processes that the rank has started, such as loader workers, are included. Memory that
    two processes share is counted twice. Figures of the GPU cover all processes on the GPU.
    """

    step: int
    """Number of optimizer steps done."""
    cpu_load: float | None = None
    """CPU time of the rank since the previous record, as a share of the time of all CPUs that the rank may use. From 0
    to 1."""
    resident_gb: float | None = None
    """Host memory in use."""
    anonymous_gb: float | None = None
    """`resident_gb` minus file pages and shared memory. This value is used to find leaks."""
    read_mb: float | None = None
    """Data read from disks, not from the page cache, since the previous record."""
    gpu_utilization: float | None = None
    """Time in which a kernel ran on the GPU, as a share of NVML's most recent sampling period. From 0 to 1."""
    gpu_memory_gb: float | None = None
    """Memory that is in use on the GPU."""
    gpu_processes: int | None = None
    """Number of processes that compute on the GPU, as far as the driver shows them."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Energy that the whole GPU has used since the previous record. The GPU's own counter measures this energy."""
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    tensor_activity: float | None = None
    """Share of time in which tensor cores worked since the previous record, from 0 to 1. Only Hopper and later chips
    report the activity of tensor cores."""
    memory_bandwidth_activity: float | None = None
    """Mean use of the GPU memory's bandwidth since the previous record, from 0 (none) to 1 (all of the bandwidth). Only
    Hopper and later chips report the use of the bandwidth."""
    throttled_by: tuple[str, ...] = ()
    """Reasons for a lower clock, such as "power cap" or "heat". Empty if the clock is not lowered, or if the reasons
    are unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of one optimizer step on this rank's device, split by what it holds, in GB of 10^9 bytes.

    Fields that are unknown or zero are None and are not written. Each part is measured at its own maximum during the
    step, so the sum of the parts may exceed `peak_gb`.
    """

    step: int
    device: str
    """Kind of the device, such as "cpu" or "cuda". Tensors elsewhere, as with offloading, are not counted."""
    source: str | None = None
    """How activations and temporary memory were measured. "operations": the tensors of the counted step were followed.
    "allocator": only the device's allocator was read, and `activations_gb` includes the temporary memory. None: neither
    is known."""
    weights_gb: float | None = None
    """Memory of parameters and buffers. For weights, gradients and optimizer state, each storage counts once."""
    gradients_gb: float | None = None
    optimizer_gb: float | None = None
    """State of the optimizers."""
    activations_gb: float | None = None
    """Tensors that the forward made and that are alive when the backward begins."""
    temporary_gb: float | None = None
    """Peak memory of all tensors that the step makes, except gradients, optimizer state and activations."""
    context_gb: float | None = None
    """Memory of the process on the GPU beyond torch's allocator: context, libraries, communicators."""
    peak_gb: float | None = None
    """Largest sum of all parts at any moment of the step. If the device has an allocator, `peak_gb` is the largest
    memory of all tensors since the program began."""
    micro_batch: int | None = None
    """Number of samples in the largest micro-batch of the step."""
    micro_batches: int | None = None
    """Number of micro-batches of the step."""
    headroom_gb: float | None = None
    """Memory that this process could still allocate at the end of the step. On a CPU, this is host memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldMemory:
    """Memory that tensors of one kind hold in a module, without its submodules. Layers of a list share one path."""

    path: str
    """Path as in `ModuleWork`."""
    kind: str
    """One of weights, gradients, optimizer, activations, failed call. "activations": the memory was measured in an
    earlier step. "failed call": local variables of the functions in which the allocation failed."""
    gb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """Failed allocation that ended the fit, and the memory of this rank at that moment, in GB of 10^9 bytes.

    Fields that are unknown are None and are not written.
    """

    step: int
    """Number of optimizer steps done."""
    device: str
    """Kind of the device, as in `Memory`."""
    error: str
    """First line of the framework's message."""
    stage: str | None = None
    """Stage in which the allocation failed: forward, backward, optimizer or evaluation. None if the allocation failed
    outside of all four stages."""
    module: str | None = None
    """Path of the module in whose forward the allocation failed, as in `ModuleWork`."""
    requested_gb: float | None = None
    weights_gb: float | None = None
    gradients_gb: float | None = None
    optimizer_gb: float | None = None
    other_gb: float | None = None
    """Memory of all tensors except weights, gradients and optimizer state. None if the device has no allocator with
    statistics."""
    reserved_gb: float | None = None
    """Memory that the device's allocator holds, used or free."""
    largest: tuple[HeldMemory, ...] = ()
    """The largest amounts of memory, the largest first."""
    micro_batch: int | None = None
    """Number of samples in the micro-batch that failed."""
    fitting_micro_batch: int | None = None
    """Largest micro-batch that would have fitted, computed from the memory of an earlier step. None if the memory of no
    earlier step was measured."""
    about_micro_batch: int | None = None
    """Estimate of the largest micro-batch that would have fitted, from the layers that had run. None if an earlier step
    was measured, or if no estimate is possible, for example because the allocation failed outside of the forward."""
    layers: int | None = None
    """Number of layers in one module list: the list whose checkpointing would free the most memory. If the freed memory
    is unknown: the list that contains the failed layer."""
    layers_to_checkpoint: int | None = None
    """Number of layers whose checkpointing would have avoided the failure. None if unknown, or if checkpointing the
    whole module list would not have been enough."""
    seconds: float = 0.0
    """Seconds that it took to make this record."""
