"""Counted against written down by hand, to the last product: every architecture, checkpointing and training.

The zoo: tiny models, each with its attention, its checkpointing and its training, and what a step costs by hand.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from flops.by_hand import FULL, Hand, Training
from flops.model_kinds import MODEL_KINDS, RELEASE
from rows import each_row
from sampling import of_the_day
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, set_checkpoint_early_stop

from perf_callbacks.flops.counting.counter import FlopCounter

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),  # a checkpoint within a checkpoint
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated"),  # PEFT asks transformers
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),  # PEFT, of a GPT-2
]
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


SETTINGS = {
    "Llama": (
        "eager; sdpa; eager, early; sdpa, early; sdpa, reentrant; sdpa, whole; eager, selective; sdpa, "
        "selective; eager, none, lora; sdpa, none, lora; sdpa, early, lora; sdpa, reentrant, lora; eager, "
        "none, frozen; sdpa, early, frozen"
    ),
    "Qwen2": "eager; sdpa, early",
    "GPT-2": "eager; sdpa, selective; sdpa, early, lora",
    "BERT": "sdpa; eager, early; eager, none, frozen",
    "T5": "eager; sdpa; sdpa, early; sdpa, none, lora; sdpa, none, frozen",
    "ViT": "eager; sdpa, reentrant; sdpa, none, lora",
    "Mixtral eager": "sdpa; eager, early",
    "Mixtral batched_mm": "eager; sdpa, selective",
    "Mixtral grouped_mm": "eager; sdpa, early; eager, none, frozen",
    "Mamba": "none; none, early",
    "Mamba2": "none; none, reentrant",
    "convolutions": "none; none, early; none, none, frozen",
    "LSTM": "none",
    "stack": (
        "eager; sdpa, selective; eager, nested; sdpa, nested; sdpa, nested early; sdpa, nested whole; eager, "
        "none, frozen"
    ),
    "seen before read": "eager, none, frozen; sdpa, early, frozen",
    "towers": "eager; sdpa, none, frozen; sdpa, early, frozen",
}
"""Of each kind of model: attention, checkpointing, and training."""

CASES = tuple(Case(kind, *row.split(", ")) for kind, rows in SETTINGS.items() for row in rows.split("; "))


def crossed(kind):
    """Every attention with every checkpointing and every training, but for what would train nothing."""
    every = product((kind.name,), kind.attentions, kind.checkpointings, kind.trainings)
    cases = [Case(*settings) for settings in every]
    return [case for case in cases if kind.reads or case.training != "frozen" or case.checkpointing != "reentrant"]


REST = tuple(case for kind in MODEL_KINDS.values() for case in crossed(kind) if case not in CASES)


def at_hand(cases):
    """The cases that the installed transformers has, and computes so."""
    return [case for case in cases if case.needs_transformers <= RELEASE]


def counted(case):
    """The work of one step of a case."""
    if case.training == "lora":
        pytest.importorskip("peft", reason="adapters are made by PEFT")
    model = case.build()
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
    with FlopCounter() as counter:
        case.step(model, case.kind.batch(), optimizer)
    assert (counter.errors, counter.observed.unknown) == ({}, {})
    return counter.work()


@each_row("case", at_hand(CASES))
def test_a_step_costs_as_much_as_by_hand(case):
    assert counted(case).by_phase == case.formula().by_phase


@pytest.mark.slow
@each_row("case", of_the_day(at_hand(REST)))
def test_the_rest_of_the_zoo_too(case):
    assert counted(case).by_phase == case.formula().by_phase


PAGE = (Path(__file__).parents[2] / "docs" / "flops-evidence.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("|")]
ZOO = {tuple(row[:4]): row[4:] for row in ROWS if len(row) == 9}
MEASURED_WITH = 5


def settings(case):
    return case.family, case.attention, case.checkpointing, case.training


def test_the_page_has_every_model_that_the_tests_count():
    _, _, *rows = ZOO
    assert rows == [settings(case) for case in CASES]


@pytest.mark.skipif(RELEASE < MEASURED_WITH, reason="older models have products that newer ones don't")
@each_row("case", CASES)
def test_a_row_of_the_page_is_the_cost_by_hand(case):
    hand = case.formula()
    model, replayed = f"{hand.model_flops:,}", f"{hand.by_phase.get('recompute', 0):,}"
    assert ZOO[settings(case)] == [model, model, "1.000000", replayed, replayed]
