"""A step that is counted computes what it would have computed: loss, weights and random numbers, to the last bit."""

from types import SimpleNamespace

import pytest
import torch
from counted import bits, counts, gpt2, ids, known, left_behind, loop, truth
from trainings import models
from transformers import TrainingArguments

from perf_callbacks import PerfConfig
from perf_callbacks.transformers import PerfCallback

LOSSES = {"step", "loss", "grad_norm", "learning_rate"}
CHECKPOINTING = next(
    name for name in ("activation_checkpointing", "gradient_checkpointing") if hasattr(TrainingArguments, name)
)
"""As this release of transformers calls it."""
WAYS = {
    "fp32": {},
    "bf16": {"bf16": True},
    "accumulating": {"gradient_accumulation_steps": 2},
    "checkpointed": {CHECKPOINTING: True},
    "all of it": {"bf16": True, "gradient_accumulation_steps": 2, CHECKPOINTING: True},
}


def dropping():
    """Attention and layers that draw random numbers."""
    return gpt2(attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1)


def by_transformers(directory, flops, **arguments):
    arguments = models.training_arguments(directory, max_steps=4, **arguments)
    trainer = models.trainer(
        arguments, PerfCallback(PerfConfig(flops=flops)), model=dropping(), train_dataset=models.Tokens(32)
    )
    trainer.train()
    losses = [{key: value for key, value in row.items() if key in LOSSES} for row in trainer.state.log_history]
    return SimpleNamespace(outcome=(losses, bits(trainer.model), torch.get_rng_state().tolist()), model=trainer.model)


@pytest.mark.parametrize("way", WAYS)
def test_with_transformers(tmp_path, way):
    before = left_behind()
    counted, off = [by_transformers(tmp_path / flops, flops, **WAYS[way]) for flops in ("count", "off")]
    assert counted.outcome == off.outcome
    assert left_behind() == before
    (record,) = counts(tmp_path / "count")
    each = 2 if "gradient_accumulation_steps" in WAYS[way] else 1
    assert record.model_flops == each * truth(dropping(), ids(4, 16))
    assert known(tmp_path / "count")[1:] == [record.model_flops] * 3
    assert max(record.by_dtype, key=record.by_dtype.get) == ("bfloat16" if "bf16" in WAYS[way] else "float32")
    assert ("recompute" in record.by_phase) == (CHECKPOINTING in WAYS[way])
    assert (record.step, record.source, record.whole_step, record.errors) == (2, "counted", True, {})
    assert counts(tmp_path / "off") == []


@pytest.mark.parametrize("autocast", [False, True])
def test_in_a_plain_loop(tmp_path, autocast):
    outcomes = []
    for flops in ("count", "off"):
        model = dropping()
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses = loop(tmp_path / flops, model, [ids(2, 8)] * 4, flops=flops)
        outcomes.append((losses, bits(model), torch.get_rng_state().tolist()))
    assert outcomes[0] == outcomes[1]
    assert known(tmp_path / "count") == [truth(dropping(), ids(2, 8))] * 4
