"""Readings between two windows: means, maxima of memory, and the last one where there is no new one."""

from perf_callbacks.memory.rank_use import MOST_READINGS, RankUse


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
