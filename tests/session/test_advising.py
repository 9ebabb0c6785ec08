"""The facts about a fit are read through whatever is wrapped around its parts."""

from types import SimpleNamespace

import pytest
import torch
from tiny import llama
from torch.utils.data import DataLoader

from perf_callbacks.session.advising import Setup, flat, read


def facts(model=None, **setup):
    return read(model, Setup(**setup), door="loop")


class Wrapper(torch.nn.Module):
    """As DDP and Lightning modules hold a model."""

    def __init__(self, name, model):
        super().__init__()
        setattr(self, name, model)


@pytest.mark.parametrize(
    "wrap", [lambda model: model, *[lambda model, of=of: Wrapper(of, model) for of in ("module", "model")]]
)
def test_attention_is_that_of_the_model_within(wrap):
    found = facts(wrap(llama(attn_implementation="eager")))
    assert (found.attention, found.sdpa) == ("eager", True)


def test_a_model_that_has_no_configuration_has_no_kind_of_attention():
    assert facts(torch.nn.Linear(2, 2)).attention is None


@pytest.mark.parametrize(("options", "fused"), [({}, False), ({"fused": True}, True), ({"foreach": True}, True)])
def test_an_optimizer_of_torch_is_known_by_its_class(options, fused):
    optimizer = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters(), **options)
    found = facts(optimizers=(optimizer,))
    assert (found.optimizer, found.tensors, found.fused) == ("AdamW", 2, fused)


def test_an_optimizer_of_the_users_own_is_not_known():
    class AdamW(torch.optim.Optimizer):
        pass

    found = facts(optimizers=(AdamW(torch.nn.Linear(2, 2).parameters(), {}),))
    assert (found.optimizer, found.tensors) == (None, 2)


def test_nothing_is_known_of_nothing():
    found = facts()
    assert (found.workers, found.attention, found.optimizer, found.fused) == (None, None, None, False)


def test_workers_are_those_of_the_loader_with_fewest():
    loaders = DataLoader([1], num_workers=2), DataLoader([1], num_workers=1), [1]
    assert facts(loaders=loaders).workers == 1
    assert facts(loaders=([1],)).workers is None


def test_loaders_are_found_in_whatever_holds_them():
    assert flat(None) == ()
    assert flat({"a": 1, "b": [2, (3,)]}) == (1, 2, 3)
    assert flat(SimpleNamespace(flattened=[1, 2])) == (1, 2)
