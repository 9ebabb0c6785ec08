"""The program of the demo: how many steps it makes, and what it prints."""

import argparse

from perf_callbacks.launch.demo import train


def test_the_settled_steps_take_the_wanted_seconds_also_if_they_get_faster():
    options = argparse.Namespace(seconds=25.0, ranks=1)
    ends = [10.0] * (train.SETTLED + 1) + [10.0 + 0.25 * step for step in range(1, train.TIMED - train.SETTLED + 1)]
    assert train.planned(ends, options) == train.SETTLED + 100
    ends += [13.0 + 0.2 * step for step in range(1, train.SETTLED + 100 - train.TIMED + 1)]
    assert train.planned(ends, options) == len(ends) - 1 + 22  # 4.4 seconds are left
    ends += [30.6 + 0.2 * step for step in range(1, 23)]
    assert train.planned(ends, options) == len(ends) - 1


def test_a_line_of_steps_without_figures_has_the_loss(capsys):
    train.show(10, 80, 4.25, {})
    train.show(80, 80, 3.5, {"perf/step_time": 0.1, "perf/data_time": 0.05, "perf/tokens_per_second": 10400.0})
    assert capsys.readouterr().out.splitlines() == [
        "step   10 of 80  loss 4.25",
        "step   80 of 80  loss 3.50  10,400 tokens/s  100 ms per step, 50% of it waiting for data",
    ]
