"""How often it is looked which parameters are trained."""

import pytest

from perf_callbacks.flops.known_work.shaped_work import ShapedWork
from perf_callbacks.flops.known_work.trained_looks import TrainedLooks


@pytest.mark.parametrize(
    ("seconds", "apart"), [(1e-4, 50), (0.004, 50), (0.01, 25), (0.02, 12), (0.05, 5), (1.0, 5), (0.0, 50)]
)
def test_looks_are_a_quarter_of_a_second_apart_but_neither_frequent_nor_rare_in_steps(seconds, apart):
    looks = TrainedLooks()
    looks.begin(100, 7.0)
    assert looks.after(100, None) == 105
    looks.looked(105, 7.0 + 5 * seconds)
    assert looks.after(105, None) == 105 + apart


def test_after_a_change_each_step_is_looked_at_for_a_while():
    looks = TrainedLooks()
    looks.begin(100, 7.0)
    looks.looked(105, 7.0)
    assert [looks.after(step, 100) - step for step in (105, 199, 200)] == [1, 1, 50]


def test_the_work_model_looks_as_often_and_says_that_parameters_have_changed():
    trained = [(True,)]
    work = ShapedWork(trained=lambda: trained[0])
    work.begin(100, 7.0)
    assert work.look_after(100) == 105
    work.look(105, 7.05)
    assert not work.trainable_changed
    assert work.look_after(105) == 105 + 25
    trained[0] = (False,)
    work.look(130, 7.3)
    assert work.trainable_changed
    assert work.look_after(130) == 131
    work.settle()
    assert not work.trainable_changed
