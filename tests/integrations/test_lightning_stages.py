"""Stages of a Lightning fit whose batches come from an iterator."""

import pytest
import torch
from trainings import lightning_kit
from trainings.lightning_trainer import LightningTraining
from trainings.runs import steps
from trainings.sleep import SLOW, Sleep


@pytest.fixture
def sleep(clock):
    return Sleep(clock.sleep)


class PlainIterator:
    """An iterable that is no loader, and has no length."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def fit(directory, sleep, change):
    training = sleep.training = LightningTraining(directory, steps=7, accumulate=2, flops="off")
    change(training)
    training.run()
    return {step["step"]: step for step in steps(directory)}


def test_the_wait_for_an_iterator_is_data(tmp_path, sleep):
    """Lightning fetches one batch ahead: the step before waits for a slow row."""

    def change(training):
        LightningTraining.PLACES["the dataset"].install(training, sleep)
        training.loader = PlainIterator(training.loader)

    found = fit(tmp_path, sleep, change)
    assert sleep.slept.keys() == {*SLOW}
    for name in ("data_time", "step_time"):
        assert sum(step[name] for step in found.values()) == pytest.approx(sum(sleep.slept.values()))


def test_an_iterator_made_between_epochs_is_data(tmp_path, sleep):
    class Stream(lightning_kit.Numbers, torch.utils.data.IterableDataset):
        __len__ = None

        def __iter__(self):
            sleep()
            return iter([self[index] for index in range(self.rows)])

    def change(training):
        training.loader = torch.utils.data.DataLoader(Stream(16), batch_size=4)

    sleep.steps = (3, 5, 7)
    found = fit(tmp_path, sleep, change)
    assert sleep.slept.keys() == {3, 5, 7}
    assert {number for number, step in found.items() if step["data_time"]} == {3, 5, 7}
    assert sum(step["step_time"] for step in found.values()) == pytest.approx(sum(sleep.slept.values()))
