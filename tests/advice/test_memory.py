"""The rule `memory`: a leak of host memory, and a device that was full."""

from types import SimpleNamespace

import pytest

from perf_callbacks.advice.facts import Facts
from perf_callbacks.advice.memory import memory
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.memory.use import Leak, MemoryUse

MEASURED = SimpleNamespace()
LEAK = Leak(gb_per_hour=2.5, gb_per_step=0.0008, before_gb=3.0, after_gb=4.0)
PARTS = Memory(step=2, device="cuda", activations_gb=30.25, peak_gb=70.5)


def found(*, available=None, expandable=False, **known):
    use = MemoryUse()
    for name, value in known.items():
        setattr(use, name, value)
    return memory(SimpleNamespace(memory_available=available), Facts(memory=use, expandable=expandable), MEASURED)


@pytest.mark.parametrize(
    ("available", "told"),
    [
        (None, ""),
        (11 * 10**9, "; the memory that was free at the start lasts 4 h more"),
        (900 * 10**9, ""),
        (10**8, ""),
    ],
)
def test_a_leak_tells_its_pace_and_when_memory_is_full(available, told):
    finding = found(leak=LEAK, available=available)
    assert (finding.cause, finding.share) == ("memory", None)
    assert finding.evidence == (
        "Host memory (without pages of files) grew by 2.5 GB per hour (0.8 MB per step), from 3.0 to 4.0 GB, "
        "and didn't level off" + told
    )
    assert finding.remedy == "keeping no tensor from step to step: losses.append(loss.item())"


def test_a_device_that_was_full_tells_the_price_of_activations():
    finding = found(retries=3, parts=PARTS)
    assert finding.evidence == (
        "The memory of the device was full 3 times: its allocator gave memory back and tried again. "
        "Activations take 30.2 of 70.5 GB"
    )
    assert finding.remedy == (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or activation checkpointing, which frees at most 30.2 GB, "
        "or a smaller batch"
    )


def test_without_the_parts_there_is_no_price():
    finding = found(retries=1)
    assert finding.evidence.startswith("The memory of the device was full once: ")
    assert finding.remedy == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a smaller batch"
    assert found(retries=1, expandable=True).remedy == "a smaller batch"


def test_a_leak_comes_first():
    assert found(leak=LEAK, retries=3).evidence.startswith("Host memory")


def test_nothing_is_said_of_memory_that_is_well_used():
    assert found(parts=PARTS) is None
    assert memory(SimpleNamespace(), Facts(), MEASURED) is None
    assert memory(SimpleNamespace(), Facts(memory=MemoryUse()), None) is None
