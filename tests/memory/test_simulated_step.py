"""Steps on fake tensors beside the same steps on the CPU, part by part."""

import itertools

import pytest
import torch
import transformers
from flops.test_conventions_counted import OWN, SMALL

from perf_callbacks import PerfConfig
from perf_callbacks.commands.simulated_model import simulation, unpadded
from perf_callbacks.flops.calculator.architecture import FAMILIES
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.loop import measure
from perf_callbacks.memory import step_memory
from perf_callbacks.memory.simulated_step import OPTIMIZERS

BATCH, SEQ = 3, 24
NAMES = ("adamw", "sgd", "adafactor")
CASES = [*itertools.product(FAMILIES, NAMES, (False, True))]
USUAL = [(kind, NAMES[place % 3], place % 2 == 0) for place, kind in enumerate(FAMILIES) if place % 3 == 0]


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch):
    """Other tests of this process may have compiled something."""
    monkeypatch.setattr(step_memory, "anything_compiled", lambda: False)


def measured(directory, kind, optimizer, *, checkpointing, dtype="fp32", accumulated=1):
    """The parts of memory in the second step of a loop."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **OWN.get(kind, SMALL))
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    model = model.bfloat16() if dtype == "bf16" else model
    if checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    chosen = OPTIMIZERS[optimizer](model.parameters())
    ids = torch.randint(3, 96, (BATCH, SEQ))
    loader = [{"input_ids": ids, "labels": ids}] * 3 * accumulated
    with measure(model=model, optimizer=chosen, loader=loader, config=PerfConfig(output_dir=str(directory))) as perf:
        for number, batch in enumerate(perf.loader, 1):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16-mixed"):
                loss = model(**batch, use_cache=False).loss
            loss.backward()
            if number % accumulated == 0:
                chosen.step()
                chosen.zero_grad()
    return perf.summary.memory


def simulated(kind, optimizer, dtype="fp32"):
    config = {"model_type": kind, **OWN.get(kind, SMALL)}
    return simulation(config, optimizer, dtype, accelerator=False)


def compare(directory, kind, optimizer, *, checkpointing, dtype="fp32", accumulated=1):
    found = measured(directory, kind, optimizer, checkpointing=checkpointing, dtype=dtype, accumulated=accumulated)
    with unpadded():
        ours = simulated(kind, optimizer, dtype)
        step = ours.step(BATCH, SEQ, checkpointed=ours.layers if checkpointing else 0, accumulated=accumulated)
    truth = found.parts_gb
    guess = {name: getattr(step.parts, f"{name}_gb") for name in truth}
    assert guess == pytest.approx(truth, rel=0.03)
    assert (found.micro_batch, found.micro_batches) == (BATCH, accumulated)


@pytest.mark.parametrize(("kind", "optimizer", "checkpointing"), USUAL)
def test_the_parts_are_as_in_a_measured_step(tmp_path, kind, optimizer, checkpointing):
    compare(tmp_path, kind, optimizer, checkpointing=checkpointing)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "optimizer", "checkpointing"), [case for case in CASES if case not in USUAL])
def test_the_parts_of_every_family_with_every_optimizer(tmp_path, kind, optimizer, checkpointing):
    compare(tmp_path, kind, optimizer, checkpointing=checkpointing)


@pytest.mark.parametrize("dtype", ["bf16", "bf16-mixed"])
def test_the_parts_in_other_formats(tmp_path, dtype):
    compare(tmp_path, "llama", "sgd", checkpointing=False, dtype=dtype)


def test_the_parts_with_accumulation(tmp_path):
    compare(tmp_path, "llama", "adamw", checkpointing=False, accumulated=2)


def test_memory_grows_with_the_batch_and_shrinks_with_checkpointing():
    with unpadded():
        ours = simulated("llama", "sgd")
        one, two, three = [ours.step(size, SEQ).parts.activations_gb for size in (1, 2, 3)]
        layers = [ours.step(8, SEQ, checkpointed=number).parts.activations_gb for number in range(ours.layers + 1)]
    assert three - two == pytest.approx(two - one, rel=0.01)
    assert layers == sorted(layers, reverse=True)
    assert len({*layers}) == len(layers)


def test_a_large_model_takes_no_memory():
    wide = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 2, "vocab_size": 128256}
    config = {"model_type": "llama", **SMALL, **wide, "num_attention_heads": 64, "num_key_value_heads": 8}
    with unpadded():
        ours = simulation(config, "adamw", "bf16-mixed", accelerator=True)
        parts = ours.step(64, 8192, checkpointed=2).parts
    assert ours.parameters > 3e9
    assert parts.weights_gb == pytest.approx(4 * ours.parameters / 1e9, rel=0.01)
    assert parts.optimizer_gb == pytest.approx(8 * ours.parameters / 1e9, rel=0.01)
    assert parts.peak_gb > 300


@pytest.mark.parametrize("kind", ["bert_of_nobody", "t5", None])
def test_another_model_is_an_error(kind):
    with pytest.raises(ConfigError, match="model_type: got"):
        simulation({"model_type": kind}, "adamw", "bf16", accelerator=True)
