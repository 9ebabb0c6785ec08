"""What the calculator says of a model's config.json is what its matmuls amount to when it runs."""

import json

import pytest
import torch
import transformers
from convention_steps import step_flops
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from perf_callbacks.flops.calculator.architecture import FAMILIES, Architecture, dimensions
from perf_callbacks.flops.counting.counter import FlopCounter

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN = {
    "gpt2": {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "bloom": {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "gemma": SMALL | {"head_dim": 24},
    "gemma2": SMALL | {"head_dim": 24, "sliding_window": 8},
    "gpt_neox": {name: value for name, value in SMALL.items() if name != "num_key_value_heads"},
    "mistral": SMALL | {"sliding_window": 8},
    "mixtral": SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": SMALL | {"tie_word_embeddings": True},
    "qwen3": SMALL | {"head_dim": 16},
}
BATCH, SEQ = 2, 24


def built(kind, directory, auto=transformers.AutoModelForCausalLM, **more):
    """A tiny model with random weights, and the config.json that it would be saved with."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **(OWN.get(kind, SMALL) | more))
    options = {"experts_implementation": "eager"} if kind == "mixtral" else {}
    model = auto.from_config(config, attn_implementation="eager", **options)
    model.config.architectures = [type(model).__name__]  # as in a saved model
    model.config.save_pretrained(directory)
    return model, json.loads((directory / "config.json").read_text())


def counted(model):
    """FLOPs of a forward and a backward."""
    ids = torch.randint(3, 96, (BATCH, SEQ), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", FAMILIES)
def test_matmul_equals_the_count_of_torch(kind, tmp_path):
    model, config = built(kind, tmp_path)
    flops = step_flops(Architecture(**dimensions(config)), BATCH, SEQ)
    assert flops.model == pytest.approx(counted(model), rel=0.001)


HEADS = {
    "classes of sequences": (transformers.AutoModelForSequenceClassification, {"num_labels": 7}, {"labels": (BATCH,)}),
    "two classes": (transformers.AutoModelForSequenceClassification, {}, {"labels": (BATCH,)}),
    "classes of tokens": (transformers.AutoModelForTokenClassification, {"num_labels": 5}, {"labels": (BATCH, SEQ)}),
    "ends of an answer": (
        transformers.AutoModelForQuestionAnswering,
        {},
        {"start_positions": (BATCH,), "end_positions": (BATCH,)},
    ),
    "no head": (transformers.AutoModel, {}, {}),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_a_head_without_a_vocabulary_counts_as_wide_as_it_is(kind, head, tmp_path):
    auto, more, targets = HEADS[head]
    model, config = built(kind, tmp_path, auto, pad_token_id=0, **more)
    ids = torch.randint(3, 96, (BATCH, SEQ))
    with FlopCounterMode(display=False) as counter:
        labels = {name: torch.ones(size, dtype=torch.long) for name, size in targets.items()}
        found = model(input_ids=ids, use_cache=False, **labels)
        (found.loss if targets else found.last_hidden_state.sum()).backward()
    shape = Architecture(**dimensions(config))
    assert step_flops(shape, BATCH, SEQ).model == pytest.approx(counter.get_total_flops(), rel=0.001)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)


@pytest.mark.parametrize("kind", FAMILIES)
def test_matmul_equals_our_count(kind, tmp_path):
    """With whatever attention and experts the model has by itself."""
    _, config = built(kind, tmp_path)
    by_itself = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    ids = torch.randint(3, 96, (BATCH, SEQ), generator=torch.Generator().manual_seed(0))
    with FlopCounter() as counter:
        by_itself(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    flops = step_flops(Architecture(**dimensions(config)), BATCH, SEQ)
    assert flops.model == pytest.approx(counter.work().model_flops, rel=0.001)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_matrices_add_up_to_the_parameters_but_for_biases_and_norms(kind, tmp_path):
    model, config = built(kind, tmp_path)
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)
    assert Architecture(**dimensions(config)).parameters == matrices


def test_lora_counts_a_model_with_frozen_weights(tmp_path):
    model, config = built("llama", tmp_path)
    model.requires_grad_(False)
    embeddings = model.get_input_embeddings()
    embeddings.register_forward_hook(lambda module, inputs, output: output.requires_grad_())
    flops = step_flops(Architecture(**dimensions(config)), BATCH, SEQ, trainable="lora")
    assert flops.model == pytest.approx(counted(model), rel=0.001)


def test_full_recomputation_counts_checkpointed_layers(tmp_path):
    model, config = built("llama", tmp_path)
    model.train()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)({"use_reentrant": False})
    flops = step_flops(Architecture(**dimensions(config)), BATCH, SEQ, recompute="full")
    with set_checkpoint_early_stop(False):  # by itself it does all but the last matrix of a layer again
        assert flops.hardware == pytest.approx(counted(model), rel=0.001)
