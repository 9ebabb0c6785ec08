"""The session of every integration: one list of observers, each of which hears of all fits."""

import pytest
from trainings.doors import DOORS

from perf_callbacks import session
from perf_callbacks.kernel.engine.observer import Observer

pytestmark = pytest.mark.usefixtures("accelerate_state")


class Slowest(Observer):
    """A feature in one class: it notes each step and span."""

    heard: list

    def __init__(self, recorder, _model):
        self.recorder = recorder
        self.heard = []

    @property
    def due(self):
        return 0

    def step_ended(self, step):
        self.heard.append(step)

    def span_began(self, kind, step):
        self.heard.append((kind, step))

    def closed(self):
        self.heard.append("closed")


@pytest.mark.parametrize("door", DOORS)
def test_a_feature_of_one_class_hears_of_the_fits_of_all_integrations(tmp_path, monkeypatch, door):
    made = []

    def make(recorder, model):
        made.append(Slowest(recorder, model))
        return made[-1]

    monkeypatch.setattr(session, "OBSERVERS", (*session.OBSERVERS, make))
    DOORS[door](tmp_path, steps=4, evaluate=2, save=2).run()
    (feature,) = made
    steps = [one for one in feature.heard if isinstance(one, int)]
    spans = {one for one in feature.heard if isinstance(one, tuple)}
    assert steps == [1, 2, 3, 4]
    assert {"evaluation", "checkpoint"} <= {kind for kind, _ in spans}
    assert feature.heard[-1] == "closed"
