"""Use of the machine between two windows, energy and lowered clocks from readings that the test makes up."""

from dataclasses import replace

import pytest

from perf_callbacks.kernel.process.device_use import DeviceUse
from perf_callbacks.kernel.records.summary_parts import EnergySummary
from perf_callbacks.memory.device_readings import MOST_READINGS, DeviceReadings, RankUse

HOT = DeviceUse(
    utilization=1.0, sm_mhz=1200, max_sm_mhz=2000, celsius=90, throttled_by=("power cap", "heat, by the driver")
)


def after(*readings):
    """The sums after readings of `(step, joules)`."""
    found = DeviceReadings()
    since = [found.add(step, DeviceUse(joules=joules, processes=1)) for step, joules in readings]
    return found.summary(), since


def test_energy_is_the_difference_of_the_counter():
    energy, since = after((1, 500.0), (11, 700.0), (41, 1300.0))
    assert energy == EnergySummary(joules=800.0, steps=40)
    assert since == [None, 200.0, 600.0]


def test_a_gap_and_a_counter_that_begins_anew_are_left_out():
    energy, since = after((0, 500.0), (30, 600.0), (60, None), (90, 900.0), (100, 1000.0), (130, 5.0), (150, 25.0))
    assert energy == EnergySummary(joules=100.0 + 100.0 + 20.0, steps=30 + 10 + 20)
    assert since == [None, 100.0, None, None, 100.0, None, 20.0]


def test_energy_of_a_shared_device_is_unknown():
    found = DeviceReadings()
    for step, processes in ((0, 1), (30, 2), (60, 1)):
        found.add(step, DeviceUse(joules=100.0 * step, processes=processes))
    assert found.summary() is None


def test_each_reading_has_its_gravest_cause_and_its_loss():
    found = DeviceReadings()
    for use in (HOT, replace(HOT, sm_mhz=1600, celsius=80, utilization=0.5), replace(HOT, throttled_by=())):
        found.add(1, use)
    assert [*found.lowered] == ["heat"]
    heat = found.lowered["heat"]
    assert (found.clocked, heat.readings, heat.sm_mhz, heat.max_sm_mhz, heat.celsius) == (3, 2, 1400.0, 2000, 85.0)
    assert heat.lost == pytest.approx(0.4 + 0.5 * 0.2)


@pytest.mark.parametrize(
    "changes",
    [{"throttled_by": None}, {"sm_mhz": None}, {"max_sm_mhz": None}],
)
def test_a_reading_without_clocks_or_reasons_does_not_count(changes):
    found = DeviceReadings()
    found.add(1, replace(HOT, **changes))
    assert (found.clocked, found.lowered) == (0, {})


@pytest.mark.parametrize("changes", [{"sm_mhz": 2000}, {"throttled_by": ("sync boost",)}])
def test_a_full_clock_and_other_reasons_are_no_loss(changes):
    found = DeviceReadings()
    found.add(1, replace(HOT, **changes))
    assert (found.clocked, found.lowered) == (1, {})


def test_a_window_has_means_and_the_most_memory():
    use = RankUse()
    use.add({"cpu_cores": None, "resident_gb": 4.0, "gpu_utilization": 0.5})
    use.add({"cpu_cores": 1.0, "resident_gb": 2.0, "gpu_utilization": 1.0})
    use.add({"cpu_cores": 3.0, "resident_gb": 3.0, "gpu_utilization": None})
    assert use.take() == {"cpu_cores": 2.0, "resident_gb": 4.0, "gpu_utilization": 0.75}


def test_a_window_without_a_reading_repeats_the_last():
    use = RankUse()
    assert use.take() == {}
    use.add({"cpu_cores": 1.0})
    use.add({"cpu_cores": 3.0})
    assert [use.take(), use.take(), use.take()] == [{"cpu_cores": 2.0}, {"cpu_cores": 3.0}, {"cpu_cores": 3.0}]


def test_readings_that_no_window_takes_are_bounded():
    use = RankUse()
    for reading in range(10 * MOST_READINGS):
        use.add({"resident_gb": float(-reading)})
    assert use.take() == {"resident_gb": float(-9 * MOST_READINGS)}


def test_energy_of_few_steps_is_unknown():
    assert after((1, 500.0), (20, 700.0))[0] is None
    assert after((1, 500.0), (21, 700.0))[0] == EnergySummary(joules=200.0, steps=20)
