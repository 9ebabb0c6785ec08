"""Records about the machine: its use by a rank, and the memory of a step."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Use of the machine by this rank, now and since the `use` record before. None: unknown; left out of the journal.

    GB are 10^9 bytes, MB 10^6. Processes that the rank has started, such as loader workers, are included; memory that
    processes share is counted in each of them. Figures of the GPU are those of all processes on it.
    """

    step: int
    """Number of optimizer steps done."""
    cpu_load: float | None = None
    """Share of the CPUs that the rank may use, from 0 to 1."""
    resident_gb: float | None = None
    """Host memory in use."""
    anonymous_gb: float | None = None
    """Anonymous part of `resident_gb`: no pages of files, no shared memory. The search for leaks reads this part."""
    read_mb: float | None = None
    """Data read from disks since the record before; what the page cache holds is not read from a disk."""
    gpu_utilization: float | None = None
    """Share of the last moments in which a kernel ran, as NVML gives it, from 0 to 1."""
    gpu_memory_gb: float | None = None
    """Memory of the GPU in use."""
    power_watts: float | None = None
    sm_clock_mhz: int | None = None
    throttled_by: tuple[str, ...] = ()
    """Reasons for a lower clock, such as "power cap" or "heat". Empty: none, or unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory of one optimizer step on this rank's device, by what it holds, in GB of 10^9 bytes.

    None: unknown, or there is none of it; left out of the journal. Each part is the largest that it is during the step,
    so their sum may exceed `peak_gb`.
    """

    step: int
    device: str
    """Kind of the device, such as "cpu" or "cuda". Tensors elsewhere, as with offloading, are not counted."""
    source: str | None = None
    """Source of activations and temporary memory: "operations" if the tensors that the counted step made were followed;
    "allocator" if only the device's allocator knows them. Then `activations_gb` includes the temporary memory. None:
    they are unknown."""
    weights_gb: float | None = None
    """Parameters and buffers. Like gradients and optimizer state, the storages of the tensors, each counted once."""
    gradients_gb: float | None = None
    optimizer_gb: float | None = None
    """State of the optimizers."""
    activations_gb: float | None = None
    """Tensors that the forward made and that are alive when the backward begins."""
    temporary_gb: float | None = None
    """All else that the step allocates, at its largest."""
    context_gb: float | None = None
    """Memory of the process on the GPU beyond torch's allocator: context, libraries, communicators."""
    peak_gb: float | None = None
    """Largest sum at any moment of the step; with an allocator, of the program so far."""
