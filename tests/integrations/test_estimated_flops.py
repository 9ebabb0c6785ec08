"""FLOPs of a model that may not run eagerly are worked out without running it; flops=off does nothing at all."""

from types import SimpleNamespace

import pytest
import torch
from counted import counts, excluded, gpt2, ids, known, left_behind, loop, truth
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from trainings.models import llama
from trainings.runs import records

from perf_callbacks.flops.by_shape.shaped_work import COPY
from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.kernel.records.fit_records import Row, Summary


@pytest.fixture
def never_eager(monkeypatch):
    """No window is opened."""
    opened = []
    monkeypatch.setattr(CountWindow, "open", opened.append)
    yield
    assert opened == []


def flops_summary(directory):
    (summary,) = records(directory, Summary)
    return summary.flops


def compiled():
    model = llama()
    model.compile(backend=lambda graph, _: graph.forward)
    return model


def wrapped():
    return torch.compile(llama(), backend=lambda graph, _: graph.forward)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor")  # Dynamo's
@pytest.mark.usefixtures("never_eager", "new_compiler")
@pytest.mark.parametrize("make", [llama, compiled, wrapped])
def test_a_model_that_can_be_repeated_is_counted_on_a_copy(tmp_path, make):
    true = {rows: truth(llama(), ids(rows, 8)) for rows in (2, 3)}
    before = left_behind()
    loop(tmp_path, make(), [ids(rows, 8) for rows in (2, 2, 3, 3)], flops="estimate")
    assert left_behind() == before
    estimates = counts(tmp_path)
    assert [(record.source, record.errors, record.lower_bound) for record in estimates] == [(COPY, {}, True)] * 2
    assert [record.model_flops for record in estimates] == [true[2], true[3]]
    assert known(tmp_path) == [true[2], true[2], true[3], true[3]]
    assert all(record.modules for record in estimates)


class Plain(nn.Module):
    """Is fed with a mapping that it takes apart itself: nobody knows how to call it with another."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 8)
        self.first, self.head = nn.Linear(8, 16, bias=False), nn.Linear(16, 64, bias=False)

    def forward(self, **batch):
        return SimpleNamespace(loss=self.head(self.first(self.embedding(batch["input_ids"]))).square().mean())


@pytest.mark.usefixtures("never_eager")
def test_a_known_decoder_has_a_closed_form_marked_as_a_lower_bound(tmp_path):
    hook = register_module_forward_hook(lambda *_: None)  # no copy is run where the program would see it
    loop(tmp_path, llama(), [ids(2, 8)] * 4, flops="estimate")
    hook.remove()
    (record,) = counts(tmp_path)
    assert (record.source, record.coverage, record.lower_bound) == ("closed form", None, True)
    weights, attention = 2 * (4 * 16 * 16 + 3 * 16 * 32 + 16 * 64) * 2 * 8, 4 * 2 * 8**2 * 16
    assert record.model_flops == 3 * (weights + attention) <= truth(llama(), ids(2, 8))
    assert known(tmp_path) == [record.model_flops] * 4
    assert flops_summary(tmp_path).lower_bound


@pytest.mark.usefixtures("never_eager")
def test_an_unknown_model_has_no_flops_and_a_reason(tmp_path):
    loop(tmp_path, Plain(), [ids(2, 8)] * 4, flops="estimate")
    assert counts(tmp_path) == []
    assert known(tmp_path) == [None] * 4
    reason = "a fake-tensor copy of the model can't be run, and there is no closed form for it"
    summary = flops_summary(tmp_path)
    assert (summary.unknown, summary.model_flops, summary.coverage) == (reason, None, None)


@pytest.mark.usefixtures("never_eager")
def test_attention_that_is_compiled_by_itself_does_not_run_eagerly(tmp_path):
    model = Plain()
    model.config = SimpleNamespace(_attn_implementation="flex_attention")
    loop(tmp_path, model, [ids(2, 8)] * 4)
    assert counts(tmp_path) == []  # nor is there a closed form


def test_hooks_of_the_user_are_not_called_for_an_estimate(tmp_path):
    calls, model = [], llama()
    model.register_forward_hook(lambda *_: calls.append("forward"))
    model.lm_head.weight.register_hook(lambda _: calls.append("gradient"))
    loop(tmp_path, model, [ids(2, 8)] * 4, flops="estimate")
    assert calls == ["forward", "gradient"] * 4
    assert len(counts(tmp_path)) == 1


@pytest.mark.usefixtures("never_eager")
def test_flops_that_are_off_cost_nothing_and_have_no_metrics(tmp_path, monkeypatch):
    monkeypatch.setattr(FlopCounter, "__init__", lambda _: pytest.fail("a counter was made"))
    loop(tmp_path, gpt2(), [ids(2, 8)] * 4, flops="off", rows=[])
    assert counts(tmp_path) == []
    assert excluded(tmp_path) == []
    assert known(tmp_path) == [None] * 4
    assert flops_summary(tmp_path) is None
    keys = {key for row in records(tmp_path, Row) for key in row.metrics}
    assert "perf/step_time" in keys
    assert [key for key in keys if "flops" in key] == []
