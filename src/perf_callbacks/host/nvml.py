"""NVIDIA GPUs of the machine, as NVML lists them: all that it manages, whatever CUDA shows to this process.

No other file imports `pynvml`, and this one does only when it is asked. Without NVML the list is empty.
"""

from dataclasses import dataclass
from typing import Any

from perf_callbacks.host.failures import describe


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A GPU in NVML's list. UUIDs have no prefix."""

    pci: str
    """PCI id as `/sys` writes it."""
    uuid: str
    instances: tuple[str, ...] = ()
    """UUIDs of its MIG instances."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """All GPUs."""

    gpus: tuple[Listed, ...] = ()
    missing: str | None = None
    """Reason that NVML lists none."""


def inventory() -> Inventory:
    """List the GPUs. NVML takes some milliseconds to begin."""
    try:
        import pynvml  # noqa: PLC0415 it takes some milliseconds, and not every machine has a GPU

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 no package, no library, no driver, or versions that don't match
        return Inventory(missing=describe(error))
    try:
        return Inventory(gpus=_gpus(pynvml))
    except Exception as error:  # noqa: BLE001 as above
        return Inventory(missing=describe(error))
    finally:
        pynvml.nvmlShutdown()  # NVML counts who uses it


def _gpus(pynvml: Any) -> tuple[Listed, ...]:
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            bus = pynvml.nvmlDeviceGetPciInfo(handle)
        except pynvml.NVMLError:  # this GPU is lost or belongs to others
            continue
        uuid = bare(pynvml.nvmlDeviceGetUUID(handle))
        found.append(Listed(pci=pci_id(bus.domain, bus.bus, bus.device), uuid=uuid, instances=_mig(pynvml, handle)))
    return tuple(found)


def _mig(pynvml: Any, handle: Any) -> tuple[str, ...]:
    """Return the UUIDs of a GPU's MIG instances; none if it isn't divided, or can't be."""
    found = []
    try:
        for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
            except pynvml.NVMLError_NotFound:  # this place is free
                continue
            found.append(bare(pynvml.nvmlDeviceGetUUID(instance)))
    except pynvml.NVMLError:  # NotSupported
        return ()
    return tuple(found)


def pci_id(domain: int, bus: int, device: int) -> str:
    """Return the PCI id of a GPU as `/sys` writes it.

    >>> pci_id(0, 0x1B, 0)
    '0000:1b:00.0'
    """
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def bare(uuid: str) -> str:
    """Return a UUID without its prefix.

    >>> bare("MIG-ab"), bare("GPU-cd"), bare("ef")
    ('ab', 'cd', 'ef')
    """
    return uuid.removeprefix("MIG-").removeprefix("GPU-").lower()
