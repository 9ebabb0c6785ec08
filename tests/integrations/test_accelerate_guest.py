"""An accelerator that is attached to is freed, copied and pickled as though nothing were attached to it."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from accelerate import Accelerator
from collector import automatic
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from trainings.accelerated import an_accelerator, prepared, rows_of_tokens, train

from perf_callbacks.accelerate import attach

pytestmark = pytest.mark.usefixtures("accelerate_state")


def a_fit(directory):
    """An accelerator that has trained, with everything it prepared."""
    accelerator = Accelerator(cpu=True, project_dir=str(directory))
    perf = attach(accelerator)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, _steady)
    loader = DataLoader(TensorDataset(torch.arange(32.0).view(8, 4)), batch_size=2)
    mine = accelerator.prepare(model, optimizer, scheduler, loader)
    _go_on(accelerator, *mine)
    return perf, accelerator, mine


def _steady(_step):
    return 1.0


def _go_on(accelerator, model, optimizer, scheduler, loader):
    for (inputs,) in loader:
        accelerator.backward(model(inputs).mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def test_an_accelerator_is_freed_with_its_last_reference(tmp_path):
    backward, collector = torch.autograd.backward, list(gc.callbacks)
    perf, accelerator, mine = a_fit(tmp_path)
    iterator = iter(mine[-1])
    next(iterator)
    assert torch.autograd.backward is not backward
    assert not automatic()
    gone = [weakref.ref(one) for one in (accelerator, *mine)]
    del accelerator, mine, iterator
    assert automatic()
    assert gone[0]() is None
    assert torch.autograd.backward is backward
    assert gc.callbacks == collector
    gc.collect()
    assert [one() for one in gone] == [None] * 5
    assert (perf.summary.steps, perf.summary.failure) == (4, "the accelerator was freed")


def test_loaders_are_freed_with_their_accelerator_without_a_collection(tmp_path):
    accelerator = an_accelerator(tmp_path)
    attach(accelerator)
    loader = accelerator.prepare_data_loader(DataLoader(range(8), batch_size=2))
    iterator = iter(loader)
    next(iterator)
    gone = [weakref.ref(one) for one in (accelerator, loader)]
    gc.disable()
    try:
        del accelerator, loader, iterator
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()


def test_fits_that_nobody_ends_leave_no_model_behind(tmp_path):
    def forgotten():
        perf, accelerator, mine = a_fit(tmp_path)
        return [weakref.ref(one) for one in (perf, accelerator, *mine)]

    gone = [one for _ in range(3) for one in forgotten()]
    gc.collect()
    assert [one() for one in gone] == [None] * 18


def test_an_accelerator_pickles_while_it_is_measured_as_what_it_is(tmp_path):
    perf, accelerator, mine = a_fit(tmp_path)
    loaded = pickle.loads(pickle.dumps(accelerator))
    assert type(loaded) is Accelerator
    assert "prepare" not in vars(loaded)
    model, _, scheduler, loader = (
        getattr(loaded, name)[0] for name in ("_models", "_optimizers", "_schedulers", "_dataloaders")
    )
    assert torch.equal(model.weight, mine[0].weight)
    assert type(scheduler).__mro__[1] is object
    assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in mine[-1]]
    perf.close()
    assert perf.summary.steps == 4


def test_a_copy_of_an_accelerator_is_not_measured(tmp_path):
    perf, accelerator, _mine = a_fit(tmp_path)
    again = copy.copy(accelerator)
    assert type(again) is Accelerator
    assert again.backward.__self__ is again
    assert copy.deepcopy(accelerator) is accelerator
    perf.close()
    assert type(accelerator) is Accelerator


def test_methods_that_somebody_replaced_before_are_watched_too(tmp_path):
    accelerator = an_accelerator(tmp_path)
    inner, theirs = accelerator.log, []

    def log(values, step=None):
        theirs.append(step)
        inner(values, step=step)

    accelerator.log = log
    perf = attach(accelerator)
    mine = prepared(accelerator, rows_of_tokens(8))
    train(accelerator, *mine)
    perf.close()
    assert theirs == [101, 102, 103, 104]
    assert "perf/step_time" in accelerator.trackers[0].rows[-2][1]  # the last row has the averages
    assert accelerator.log is log
