"""Where nothing may run eagerly, it is worked out without running it; where nobody wants to know, nothing is done."""

from types import SimpleNamespace

import accelerate
import pytest
import torch
from counted import ANGLES, bits, counts, excluded, gpt2, ids, known, left_behind, loop, mamba, truth
from peft import LoraConfig, get_peft_model
from torch import nn
from trainings import models, runs

from perf_callbacks import PerfConfig
from perf_callbacks.flops import offline
from perf_callbacks.flops.by_shape.shaped_work import COPY
from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.kernel.records.fit_records import Row, Summary
from perf_callbacks.transformers import PerfCallback

HALF = {"bfloat16", "float32"} if ANGLES else {"bfloat16"}


@pytest.fixture
def never_eager(monkeypatch):
    """No window is opened."""
    opened = []
    monkeypatch.setattr(CountWindow, "open", opened.append)
    yield
    assert opened == []


def checkpointed(model):
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    return model


def compiled(model):
    model.compile(backend=lambda graph, _: graph.forward)
    return model


MODELS = {
    "llama": models.llama,
    "eager attention": lambda: models.llama(attn_implementation="eager"),
    "gpt2": gpt2,
    "mamba": mamba,
    "checkpointed": lambda: checkpointed(models.llama().train()),
    "bf16": lambda: models.llama().bfloat16(),
    "frozen": lambda: models.llama().requires_grad_(requires_grad=False).train(),
    "compiled": lambda: compiled(models.llama()),
}


def half_frozen(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name or "embed" in name)
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor")  # Dynamo's
@pytest.mark.usefixtures("never_eager")
@pytest.mark.parametrize("kind", MODELS)
def test_models_that_can_be_repeated_are_counted_offline(tmp_path, kind):
    model = MODELS[kind]() if kind != "frozen" else half_frozen(MODELS[kind]())
    plain = models.llama() if kind == "compiled" else model
    true = {rows: truth(plain, ids(rows, 8)) for rows in (2, 3)}
    before = left_behind()
    loop(tmp_path, model, [ids(rows, 8) for rows in (2, 2, 3, 3)], flops="estimate")
    torch._dynamo.reset()
    assert left_behind() == before
    records = counts(tmp_path)
    assert [(record.source, record.errors, record.lower_bound) for record in records] == [(COPY, {}, True)] * 2
    assert [record.model_flops for record in records] == [true[2], true[3]]
    assert known(tmp_path) == [true[2], true[2], true[3], true[3]]
    assert set(records[0].by_dtype) == (HALF if kind == "bf16" else {"float32"})
    assert ("recompute" in records[0].by_phase) == (kind == "checkpointed")


@pytest.mark.usefixtures("never_eager", "accelerate_state")
def test_a_model_that_accelerate_has_prepared_for_bf16(tmp_path):
    from perf_callbacks.accelerate import attach

    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16", project_dir=str(tmp_path))
    perf = attach(accelerator, config=PerfConfig(flops="estimate"))
    model = models.llama()
    loader = torch.utils.data.DataLoader(models.Tokens(16, (16,), mask=False), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    perf.close()
    (record,) = counts(tmp_path)
    assert (record.source, record.model_flops) == (COPY, truth(models.llama(), ids(4, 16)))
    assert set(record.by_dtype) == HALF


class Plain(nn.Module):
    """Is fed with a mapping that it takes apart itself: nobody knows how to call it with another."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 8)
        self.first, self.head = nn.Linear(8, 16, bias=False), nn.Linear(16, 64, bias=False)

    def forward(self, **batch):
        y = self.head(self.first(self.embedding(batch["input_ids"])))
        return SimpleNamespace(loss=y.square().mean())


@pytest.mark.usefixtures("never_eager")
def test_a_known_decoder_has_a_closed_form_marked_as_a_lower_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(offline, "_emptied", None)
    loop(tmp_path, models.llama(), [ids(2, 8)] * 4, flops="estimate")
    (record,) = counts(tmp_path)
    assert (record.source, record.coverage, record.lower_bound) == ("closed form", None, True)
    weights, attention = 2 * (4 * 16 * 16 + 3 * 16 * 32 + 16 * 64) * 2 * 8, 4 * 2 * 8**2 * 16
    assert record.model_flops == 3 * (weights + attention) <= truth(models.llama(), ids(2, 8))
    assert known(tmp_path) == [record.model_flops] * 4
    (summary,) = runs.records(tmp_path, Summary)
    assert summary.flops.lower_bound


@pytest.mark.usefixtures("never_eager")
def test_an_unknown_model_has_no_flops_and_the_table_says_why(tmp_path):
    loop(tmp_path, Plain(), [ids(2, 8)] * 4, flops="estimate")
    assert counts(tmp_path) == []
    (summary,) = runs.records(tmp_path, Summary)
    assert summary.flops.unknown == "a fake-tensor copy of the model can't be run, and there is no closed form for it"


@pytest.mark.filterwarnings("ignore")  # PEFT's, about its use of transformers
@pytest.mark.usefixtures("never_eager")
@pytest.mark.parametrize("saved", [None, ["lm_head"]])
def test_adapters_are_counted_offline(tmp_path, saved):
    model = get_peft_model(models.llama(), LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=saved))
    loop(tmp_path, model, [ids(2, 8)] * 4, flops="estimate")
    (record,) = counts(tmp_path)
    assert (record.source, record.model_flops) == (COPY, truth(model, ids(2, 8)))


@pytest.mark.usefixtures("never_eager")
def test_of_what_reads_no_tokens_nothing_is_said(tmp_path):
    loop(tmp_path, nn.Linear(4, 4), [torch.ones(2, 4)] * 4, flops="estimate")
    assert counts(tmp_path) == []
    assert known(tmp_path) == [None] * 4
    (summary,) = runs.records(tmp_path, Summary)
    assert (summary.flops.model_flops, summary.flops.coverage) == (None, None)


@pytest.mark.usefixtures("never_eager")
def test_attention_that_is_compiled_by_itself_does_not_run_eagerly(tmp_path):
    model = Plain()
    model.config = SimpleNamespace(_attn_implementation="flex_attention")
    loop(tmp_path, model, [ids(2, 8)] * 4)
    assert counts(tmp_path) == []  # nor is there a closed form


def test_an_estimate_changes_no_bit(tmp_path):
    outcomes = []
    for flops in ("estimate", "off"):
        model = gpt2(resid_pdrop=0.1)
        losses = loop(tmp_path / flops, model, [ids(2, 8), ids(3, 9)] * 2, flops=flops)
        outcomes.append((losses, bits(model), torch.get_rng_state().tolist()))
    assert outcomes[0] == outcomes[1]


def test_hooks_of_the_user_are_not_called_for_an_estimate(tmp_path):
    calls = []
    model = models.llama()
    model.register_forward_hook(lambda *_: calls.append("forward"))
    model.lm_head.weight.register_hook(lambda _: calls.append("gradient"))
    loop(tmp_path, model, [ids(2, 8)] * 4, flops="estimate")
    assert calls == ["forward", "gradient"] * 4
    assert len(counts(tmp_path)) == 1


@pytest.mark.usefixtures("never_eager")
def test_off_is_off(tmp_path, monkeypatch):
    monkeypatch.setattr(FlopCounter, "__init__", lambda _: pytest.fail("a counter was made"))
    trainer = models.trainer(models.training_arguments(tmp_path), PerfCallback(PerfConfig(flops="off")))
    trainer.train()
    assert counts(tmp_path) == []
    assert excluded(tmp_path) == []
    assert known(tmp_path) == [None] * 6
    keys = {key for row in trainer.state.log_history for key in row}
    assert "perf/step_time" in keys
    assert [key for key in keys if "flops" in key] == []
    assert all("flops" not in key for row in runs.records(tmp_path, Row) for key in row.metrics)
