"""Ends that only a loop with Accelerate has: another `attach`, a second accelerator, a loop that is dropped."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from trainings.accelerated import an_accelerator, prepared, rows_of_tokens, train
from trainings.runs import steps

from perf_callbacks.accelerate import attach

pytestmark = pytest.mark.usefixtures("accelerate_state")


def test_a_second_attach_takes_over(tmp_path):
    accelerator = an_accelerator(tmp_path)
    first = attach(accelerator)
    mine = prepared(accelerator, rows_of_tokens(8))
    train(accelerator, *mine)
    second = attach(accelerator)
    train(accelerator, *mine)
    accelerator.end_training()
    assert (first.summary.steps, first.summary.failure) == (4, "another attach(accelerator) took over")
    assert (second.summary.steps, second.summary.failure) == (4, None)
    assert [len(steps(tmp_path, attempt=number)) for number in (0, 1)] == [4, 4]


def test_the_newer_of_two_accelerators_with_one_optimizer_is_measured(tmp_path):
    old = an_accelerator(tmp_path)
    first = attach(old)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for accelerator in (old, an_accelerator(tmp_path)):
        second = attach(accelerator)
        mine, inner, loader = accelerator.prepare(model, optimizer, DataLoader(torch.ones(8, 4), batch_size=2))
        for inputs in loader:
            accelerator.backward(mine(inputs).mean())
            inner.step()
    second.close()
    assert (first.summary, second.summary.steps) == (None, 4)
    assert [len(steps(tmp_path, attempt=number)) for number in (0, 1)] == [4, 4]
    assert not optimizer._optimizer_step_post_hooks


def test_a_patch_of_the_user_on_top_of_the_callback_stays(tmp_path):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator)
    theirs, ours = [], accelerator.log
    accelerator.log = lambda values: theirs.append(ours(values))
    perf.close("enough")
    accelerator.log({"note": 1})
    assert theirs == [None]
    assert accelerator.trackers[0].rows == [(None, {"note": 1})]
