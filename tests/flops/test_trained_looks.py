"""How often it is looked which parameters are trained."""

from types import SimpleNamespace

import pytest

from perf_callbacks.flops.known_work.trained_looks import TrainedLooks


@pytest.mark.parametrize(
    ("seconds", "apart"), [(1e-4, 50), (0.004, 50), (0.01, 25), (0.02, 12), (0.05, 5), (1.0, 5), (0.0, 50)]
)
def test_looks_are_a_quarter_of_a_second_apart_but_neither_frequent_nor_rare_in_steps(seconds, apart):
    looked = []
    looks = TrainedLooks(SimpleNamespace(look=looked.append, unsure=False, changed=None))
    looks.begin(100, 7.0)
    assert looks.after(100) == 105
    assert not looks.look(105, 7.0 + 5 * seconds)
    assert looks.after(105) == 105 + apart
    assert looked == [105]


def test_after_a_change_each_step_is_looked_at_for_a_while():
    work = SimpleNamespace(look=lambda step: None, unsure=False, changed=None)
    looks = TrainedLooks(work)
    looks.begin(100, 7.0)
    looks.look(105, 7.0)
    work.changed = 100
    assert [looks.after(step) - step for step in (105, 199, 200)] == [1, 1, 50]


def test_what_changed_is_told():
    looks = TrainedLooks(SimpleNamespace(look=lambda step: None, unsure=True))
    looks.begin(0, 0.0)
    assert looks.look(5, 1.0)
