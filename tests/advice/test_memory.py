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


def found(*, available=None, expandable=None, **known):
    use = MemoryUse()
    for name, value in known.items():
        setattr(use, name, value)
    return memory(Facts(memory_available=available, memory=use, expandable=expandable), MEASURED)


@pytest.mark.parametrize(
    ("available", "lasts"), [(None, ""), (11 * 10**9, "lasts 4 h"), (900 * 10**9, ""), (10**8, "")]
)
def test_a_leak_tells_its_pace_and_when_memory_is_full(available, lasts):
    finding = found(leak=LEAK, available=available)
    assert (finding.cause, finding.share) == ("memory", None)
    assert "2.5 GB per hour" in finding.evidence
    assert lasts in finding.evidence
    assert (" lasts " in finding.evidence) == bool(lasts)


def test_a_full_device_tells_the_price_of_activations_if_it_is_known():
    assert "30.2 GB" in found(retries=3, parts=PARTS).remedy
    assert "GB" not in found(retries=1).remedy


def test_a_leak_comes_first():
    assert found(leak=LEAK, retries=3) == found(leak=LEAK)


def test_nothing_is_said_of_memory_that_is_well_used():
    assert found(parts=PARTS) is None
    assert memory(Facts(), MEASURED) is None
    assert memory(Facts(memory=MemoryUse()), None) is None
