"""Counted against written down by hand, to the last product: every architecture, checkpointing and training."""

import pytest
import torch
from flops.model_kinds import RELEASE
from flops.zoo import CASES, REST
from rows import each_row
from sampling import of_the_day

from perf_callbacks.flops.counting.counter import FlopCounter

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True"),  # a checkpoint within a checkpoint
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated"),  # PEFT asks transformers
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False"),  # PEFT, of a GPT-2
]


def at_hand(cases):
    """The cases that the installed transformers has, and computes so."""
    return [case for case in cases if case.needs_transformers <= RELEASE]


def counted(case):
    """The work of one step of a case."""
    if case.training == "lora":
        pytest.importorskip("peft", reason="adapters are made by PEFT")
    model = case.build()
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
    with FlopCounter() as counter:
        case.step(model, case.batch(), optimizer)
    return counter.work()


@each_row("case", at_hand(CASES))
def test_what_is_counted_is_what_was_written_down(case):
    work, hand = counted(case), case.formula()
    assert work.by_phase == hand.by_phase
    assert 0.999 <= work.model_flops / hand.model_flops <= 1.001


@pytest.mark.slow
@each_row("case", of_the_day(at_hand(REST)))
def test_the_rest_of_the_zoo_too(case):
    assert counted(case).by_phase == case.formula().by_phase


@each_row("checkpointing", ["reentrant", "early", "whole", "selective", "nested", "nested early", "nested whole"])
@each_row("attention", ["eager", "sdpa"])
def test_checkpointing_leaves_model_flops_as_they_are(attention, checkpointing):
    from flops.zoo import Case

    plain = counted(Case("stack", attention))
    work = counted(Case("stack", attention, checkpointing))
    assert work.model_flops == plain.model_flops
    assert work.hardware_flops == plain.hardware_flops + work.by_phase["recompute"]


def test_fused_attention_executes_five_products_backward_four_of_the_model():
    from flops.zoo import Case

    eager, fused = counted(Case("stack", "eager")), counted(Case("stack", "sdpa"))
    assert fused.model_flops == eager.model_flops == eager.hardware_flops
    one_product = fused.by_phase["attention_recompute"]
    assert fused.hardware_flops == fused.model_flops + one_product
    assert (
        one_product == 4 * 2 * (2 * 2) * 16 * 16 * 16
    )  # blocks; multiply and add; batch x heads; queries, keys, width
