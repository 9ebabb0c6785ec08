"""Kinds of models: how each is built, what it is fed, how it is written down, which of it may be frozen or adapted."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from types import SimpleNamespace

import torch
from flops import formulas_by_hand as by_hand, formulas_of_ours as ours, models
from flops.models import BATCH, LENGTH, TARGET, VOCABULARY, WIDE

RELEASE = int(version("transformers").partition(".")[0])


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """A kind of model."""

    name: str
    build: Callable
    """From the attention to a model."""
    batch: Callable
    formula: Callable
    """Writes it down on a `Hand`."""
    attentions: tuple[str, ...] = ("eager", "sdpa")
    checkpointings: tuple[str, ...] = ("none", "reentrant", "early", "whole", "selective")
    frozen: tuple[str, ...] = ()
    """Parts of names of what stays as it is when it is trained in part."""
    adapted: tuple[str, ...] = ()
    """Names of the layers that get an adapter."""
    reads: bool = True
    """Whether its input is tokens: checkpointing then asks a gradient of what was embedded."""
    needs_transformers: int = 4
    fused_needs_transformers: int = 4

    @property
    def trainings(self):
        return ("full",) + ("lora",) * bool(self.adapted) + ("frozen",) * bool(self.frozen)


def config(values, **others):
    return SimpleNamespace(**values, **others)


def decoder(family, values=models.DECODER, **others):
    return config(values, rotary_is_a_product=models.rotary_is_a_product(family), **others)


def labelled(length=models.LENGTH):
    return {"input_ids": models.tokens(length), "labels": models.tokens(length)}


def hugging(name, values, **options):
    return lambda attention: models.hugging(name, values, attn_implementation=attention, **options)


def without_attention(name, values):
    return lambda attention: models.hugging(name, values)


def mixtral(experts):
    options = {"experts_implementation": experts} if RELEASE >= 5 else {}
    return ModelKind(
        name=f"Mixtral {experts}",
        build=hugging("MixtralForCausalLM", models.MIXTRAL, **options),
        batch=labelled,
        formula=lambda hand: by_hand.mixtral(
            hand, decoder("Mixtral", models.MIXTRAL, experts=experts), models.BATCH, models.LENGTH
        ),
        frozen=("embed_tokens", "layers.0.", "lm_head"),
        adapted=("q_proj", "v_proj"),
        needs_transformers=4 if experts == "eager" else 5,
    )


def towers(kind, language, values, attention):
    vision = models.hugging("ViTModel", models.VIT, attn_implementation=attention)
    text = models.hugging(language, values, attn_implementation=attention)
    vision.pooler = text.pooler = None
    return kind(vision, text)


def both():
    return {"pixel_values": models.pixels(), "input_ids": models.tokens()}


SIDE = 8
NON_REENTRANT = ("none", "early", "whole", "selective")
DECODERS = {"frozen": ("embed_tokens", "layers.0.", "lm_head"), "adapted": ("q_proj", "v_proj")}
ALL = (
    ModelKind(
        name="Llama",
        build=hugging("LlamaForCausalLM", models.DECODER),
        batch=labelled,
        formula=lambda hand: by_hand.llama(hand, decoder("Llama"), BATCH, LENGTH),
        **DECODERS,
    ),
    ModelKind(
        name="Qwen2",
        build=hugging("Qwen2ForCausalLM", models.DECODER, tie_word_embeddings=True),
        batch=labelled,
        formula=lambda hand: by_hand.llama(hand, decoder("Qwen2"), BATCH, LENGTH),
        **DECODERS,
    ),
    ModelKind(
        name="GPT-2",
        build=hugging("GPT2LMHeadModel", models.GPT2),
        batch=labelled,
        formula=lambda hand: by_hand.gpt2(hand, config(models.GPT2), BATCH, LENGTH),
        frozen=("wte", "wpe", "h.0.", "lm_head"),
        adapted=("c_attn",),
    ),
    ModelKind(
        name="BERT",
        build=hugging("BertForMaskedLM", models.BERT),
        batch=labelled,
        formula=lambda hand: by_hand.bert(hand, config(models.BERT), BATCH, LENGTH),
        frozen=("embeddings", "layer.0.", "decoder"),
        adapted=("query", "value"),
    ),
    ModelKind(
        name="T5",
        build=hugging("T5ForConditionalGeneration", models.T5),
        batch=lambda: {"input_ids": models.tokens(), "labels": models.tokens(TARGET)},
        formula=lambda hand: by_hand.t5(hand, config(models.T5), BATCH, LENGTH, TARGET),
        fused_needs_transformers=5,
        frozen=("shared", "lm_head", "encoder.", "relative_attention_bias"),
        adapted=("q", "v"),
    ),
    ModelKind(
        name="ViT",
        build=hugging("ViTForImageClassification", models.VIT),
        batch=lambda: {"pixel_values": models.pixels(), "labels": torch.tensor([0, 1])},
        formula=lambda hand: by_hand.vit(hand, config(models.VIT), BATCH),
        frozen=("embeddings", "layer.0.", "layers.0.", "classifier"),
        adapted=("q_proj", "v_proj"),
        reads=False,
        needs_transformers=5,
    ),
    mixtral("eager"),
    mixtral("batched_mm"),
    mixtral("grouped_mm"),
    ModelKind(
        name="Mamba",
        build=without_attention("MambaForCausalLM", models.MAMBA),
        batch=labelled,
        formula=lambda hand: by_hand.mamba(hand, config(models.MAMBA, intermediate_size=2 * WIDE), BATCH, LENGTH),
        attentions=("none",),
        frozen=("embeddings", "layers.0.", "lm_head"),
        adapted=("in_proj",),
    ),
    ModelKind(
        name="Mamba2",
        build=without_attention("Mamba2ForCausalLM", models.MAMBA2),
        batch=labelled,
        formula=lambda hand: by_hand.mamba2(hand, config(models.MAMBA2), BATCH, LENGTH),
        attentions=("none",),
        frozen=("embeddings", "layers.0.", "lm_head"),
        adapted=("in_proj",),
        needs_transformers=5,  # element-wise before
    ),
    ModelKind(
        name="convolutions",
        build=lambda _: models.Convolutions(),
        batch=lambda: {"x": torch.randn(BATCH, 3, SIDE, SIDE)},
        formula=lambda hand: ours.convolutions(hand, BATCH, SIDE),
        attentions=("none",),
        frozen=("plain", "depthwise"),
        reads=False,
    ),
    ModelKind(
        name="LSTM",
        build=lambda _: models.Recurrent(),
        batch=lambda: {"ids": models.tokens()},
        formula=lambda hand: ours.recurrent(hand, BATCH, LENGTH, wide=WIDE, hidden=24, vocabulary=VOCABULARY),
        attentions=("none",),
        checkpointings=("none",),
        frozen=("head",),
    ),
    ModelKind(
        name="stack",
        build=models.Stack,
        batch=lambda: {"x": torch.randn(BATCH, LENGTH, WIDE)},
        formula=lambda hand: ours.stack(hand, BATCH, LENGTH, WIDE, 4),
        checkpointings=("none", "reentrant", "early", "whole", "selective", "nested", "nested early", "nested whole"),
        frozen=("head",),
        reads=False,
    ),
    ModelKind(
        name="seen before read",
        build=lambda attention: towers(models.Prefix, "LlamaForCausalLM", models.DECODER, attention),
        batch=both,
        formula=lambda hand: ours.prefix(hand, config(models.VIT), decoder("Llama"), BATCH, LENGTH),
        checkpointings=NON_REENTRANT,
        frozen=("vision.", "language.", "layers."),
    ),
    ModelKind(
        name="towers",
        build=lambda attention: towers(models.Towers, "BertModel", models.BERT, attention),
        batch=both,
        formula=lambda hand: ours.towers(hand, config(models.VIT), config(models.BERT), BATCH, LENGTH),
        checkpointings=NON_REENTRANT,
        frozen=("vision.",),
    ),
)
MODEL_KINDS = {kind.name: kind for kind in ALL}
