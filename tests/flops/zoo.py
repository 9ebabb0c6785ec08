"""The zoo: tiny models, each with its attention, its checkpointing and its training, and what a step costs by hand."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from flops.by_hand import FULL, Hand, Training
from flops.model_kinds import MODEL_KINDS
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, set_checkpoint_early_stop

KEPT = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
CHECKPOINTING = {
    "none": None,
    "reentrant": {"use_reentrant": True},
    "early": {"use_reentrant": False},
    "whole": {"use_reentrant": False},
    "selective": {"use_reentrant": False, "context_fn": partial(create_selective_checkpoint_contexts, KEPT)},
    "nested": {"use_reentrant": True},
    "nested early": {"use_reentrant": False},
    "nested whole": {"use_reentrant": False},
}


@dataclass(frozen=True)
class Case:
    """One model trained in one way."""

    family: str
    attention: str = "none"
    checkpointing: str = "none"
    training: str = "full"

    @property
    def name(self):
        return f"{self.family}-{self.attention}-{self.checkpointing}-{self.training}".replace(" ", "-")

    @property
    def kind(self):
        return MODEL_KINDS[self.family]

    @property
    def needs_transformers(self):
        return max(self.kind.needs_transformers, self.kind.fused_needs_transformers if self.attention == "sdpa" else 0)

    @property
    def trained(self):
        chosen = {
            "full": FULL,
            "lora": Training(name="lora", adapted=self.kind.adapted, rank=2),
            "frozen": Training(name="frozen", frozen=self.kind.frozen),
        }
        return chosen[self.training]

    def build(self):
        """The model, frozen, adapted and checkpointed as the case says."""
        model = self.kind.build(self.attention).train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.training == "lora" or self.trained.trains(name))
        if self.checkpointing != "none":
            checkpointed(model, self)
        return adapted(model, self.kind.adapted) if self.training == "lora" else model

    def batch(self):
        return self.kind.batch()

    def formula(self):
        """The model written down."""
        hand = Hand(
            training=self.trained,
            fused=self.attention == "sdpa",
            inputs_need=self.checkpointing != "none" and (self.kind.reads or self.training == "lora"),
            checkpointing=self.checkpointing,
        )
        self.kind.formula(hand)
        return hand

    def step(self, model, batch, optimizer):
        """One training step, whose loss is returned."""
        with set_checkpoint_early_stop(False) if "whole" in self.checkpointing else nullcontext():
            loss = model(**batch).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()


def checkpointed(model, case):
    """Checkpoints each layer; what embeds tokens then gives a gradient, as Trainers ask for adapters."""
    arguments = CHECKPOINTING[case.checkpointing]
    if hasattr(model, "checkpointing"):
        model.checkpointing = partial(checkpoint, **arguments)
        model.nested = "nested" in case.checkpointing
        return
    for part in [model] if hasattr(model, "gradient_checkpointing_enable") else model.children():
        if enable := getattr(part, "activation_checkpointing_enable", None):
            enable(activation_checkpointing_kwargs=arguments)
        elif enable := getattr(part, "gradient_checkpointing_enable", None):
            enable(gradient_checkpointing_kwargs=arguments)
        if enable and part.main_input_name == "input_ids":
            part.enable_input_require_grads()


def adapted(model, targets):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, target_modules=list(targets), lora_dropout=0.0))


CASES = (
    Case("Llama", "eager"),
    Case("Llama", "sdpa"),
    Case("Llama", "eager", "early"),
    Case("Llama", "sdpa", "early"),
    Case("Llama", "sdpa", "reentrant"),
    Case("Llama", "sdpa", "whole"),
    Case("Llama", "eager", "selective"),
    Case("Llama", "sdpa", "selective"),
    Case("Llama", "eager", "none", "lora"),
    Case("Llama", "sdpa", "none", "lora"),
    Case("Llama", "sdpa", "early", "lora"),
    Case("Llama", "sdpa", "reentrant", "lora"),
    Case("Llama", "eager", "none", "frozen"),
    Case("Llama", "sdpa", "early", "frozen"),
    Case("Qwen2", "eager"),
    Case("Qwen2", "sdpa", "early"),
    Case("GPT-2", "eager"),
    Case("GPT-2", "sdpa", "selective"),
    Case("GPT-2", "sdpa", "early", "lora"),
    Case("BERT", "sdpa"),
    Case("BERT", "eager", "early"),
    Case("BERT", "eager", "none", "frozen"),
    Case("T5", "eager"),
    Case("T5", "sdpa"),
    Case("T5", "sdpa", "early"),
    Case("T5", "sdpa", "none", "lora"),
    Case("T5", "sdpa", "none", "frozen"),
    Case("ViT", "eager"),
    Case("ViT", "sdpa", "reentrant"),
    Case("ViT", "sdpa", "none", "lora"),
    Case("Mixtral eager", "sdpa"),
    Case("Mixtral eager", "eager", "early"),
    Case("Mixtral batched_mm", "eager"),
    Case("Mixtral batched_mm", "sdpa", "selective"),
    Case("Mixtral grouped_mm", "eager"),
    Case("Mixtral grouped_mm", "sdpa", "early"),
    Case("Mixtral grouped_mm", "eager", "none", "frozen"),
    Case("Mamba"),
    Case("Mamba", "none", "early"),
    Case("Mamba2"),
    Case("Mamba2", "none", "reentrant"),
    Case("convolutions"),
    Case("convolutions", "none", "early"),
    Case("convolutions", "none", "none", "frozen"),
    Case("LSTM"),
    Case("stack", "eager"),
    Case("stack", "sdpa", "selective"),
    Case("stack", "eager", "nested"),
    Case("stack", "sdpa", "nested"),
    Case("stack", "sdpa", "nested early"),
    Case("stack", "sdpa", "nested whole"),
    Case("stack", "eager", "none", "frozen"),
    Case("seen before read", "eager", "none", "frozen"),
    Case("seen before read", "sdpa", "early", "frozen"),
    Case("towers", "eager"),
    Case("towers", "sdpa", "none", "frozen"),
    Case("towers", "sdpa", "early", "frozen"),
)


def crossed(kind):
    """Every attention with every checkpointing and every training, but for what would train nothing."""
    every = product((kind.name,), kind.attentions, kind.checkpointings, kind.trainings)
    cases = [Case(*one) for one in every]
    return [case for case in cases if kind.reads or case.training != "frozen" or case.checkpointing != "reentrant"]


REST = tuple(case for kind in MODEL_KINDS.values() for case in crossed(kind) if case not in CASES)
