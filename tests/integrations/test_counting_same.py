"""A step that is counted computes what it would have computed: loss, weights and random numbers, to the last bit."""

import pytest
import torch
from counted import bits, counts, gpt2, ids, known, left_behind, loop, truth

WAYS = {
    "fp32": {},
    "bf16": {"autocast": True},
    "accumulating": {"each": 2},
    "checkpointed": {"checkpointed": True},
    "all of it": {"autocast": True, "each": 2, "checkpointed": True},
}


def dropping(*, checkpointed=False):
    """Attention and layers that draw random numbers."""
    model = gpt2(attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1)
    if checkpointed:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    return model


def train(directory, flops, *, autocast=False, each=1, checkpointed=False):
    """What a fit comes to."""
    model = dropping(checkpointed=checkpointed)
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        losses = loop(directory, model, [ids(2, 8)] * 4 * each, flops=flops, each=each)
    return losses, bits(model), torch.get_rng_state().tolist()


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated:FutureWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_counted_fit_is_as_without_counts(tmp_path, way):
    before, options = left_behind(), WAYS[way]
    assert train(tmp_path / "count", "count", **options) == train(tmp_path / "off", "off", **options)
    assert left_behind() == before
    (record,) = counts(tmp_path / "count")
    assert record.model_flops == options.get("each", 1) * truth(dropping(), ids(2, 8))
    assert known(tmp_path / "count") == [record.model_flops] * 4
    assert max(record.by_dtype, key=record.by_dtype.get) == ("bfloat16" if "autocast" in options else "float32")
    assert ("recompute" in record.by_phase) == ("checkpointed" in options)
    assert (record.step, record.source, record.whole_step, record.errors) == (2, "counted", True, {})
    assert counts(tmp_path / "off") == []


def test_an_estimated_fit_is_as_without_estimates(tmp_path):
    assert train(tmp_path / "estimate", "estimate") == train(tmp_path / "off", "off")
    assert len(counts(tmp_path / "estimate")) == 1
