"""FLOPs without running anything: the same as counted, and the model is not touched."""

import random
import sys
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from counted import bits, gpt2, ids, left_behind, mamba
from rows import each_row
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from trainings.models import llama

from perf_callbacks.flops import offline
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.flops.offline import closed_form, example_of


def checkpointed(*, reentrant):
    model = llama().train()
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": reentrant})
    return model


def prepared():
    """As Accelerate prepares a model for bfloat16."""
    AcceleratorState._reset_state(reset_partial_state=True)  # other tests of this process may have left one
    model = Accelerator(cpu=True, mixed_precision="bf16").prepare(llama())
    AcceleratorState._reset_state(reset_partial_state=True)
    return model


def partly_frozen(name="embed_tokens"):
    model = llama()
    for path, parameter in model.named_parameters():
        parameter.requires_grad_(name not in path)
    return model


MODELS = {
    "llama": llama,
    "eager attention": lambda: llama(attn_implementation="eager"),
    "grouped queries": lambda: llama(num_attention_heads=4, num_key_value_heads=2),
    "gpt2": gpt2,
    "tied": lambda: llama(tie_word_embeddings=True),
    "mamba": mamba,
    "checkpointed": lambda: checkpointed(reentrant=False),
    "reentrant": lambda: checkpointed(reentrant=True),
    "bf16": lambda: llama().bfloat16(),
    "frozen": lambda: partly_frozen("layers"),
    "DataParallel": lambda: nn.DataParallel(llama()),
    "accelerate": prepared,
}


def counted(model, batch):
    with torch.random.fork_rng(), FlopCounter() as counter:
        model(**batch).loss.backward()
    return counter


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@each_row("kind", MODELS)
def test_a_copy_counts_the_products_of_its_model(kind):
    model, batch = MODELS[kind](), ids(3, 8)
    states = bits(model), torch.get_rng_state().tolist()
    found = offline.count(model, example_of(batch))
    assert (bits(model), torch.get_rng_state().tolist()) == states
    assert all(parameter.grad is None for parameter in model.parameters())
    true = counted(model, batch)
    assert found.work() == true.work()
    assert found.weights.coverage() == true.weights.coverage()
    assert found.errors == {}
    assert found.observed.unknown == {}


def test_a_copy_needs_no_memory_for_numbers():
    with torch.device("meta"):
        model = llama(hidden_size=8192, intermediate_size=65536, num_hidden_layers=4, use_cache=False)
    work = offline.count(model, example_of({name: value.to("meta") for name, value in ids(2, 8).items()})).work()
    assert work.model_flops == pytest.approx(closed_form(model, example_of(ids(2, 8))).model_flops, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (nn.Linear(4, 4), {"input": torch.ones(2, 4)}),
        (llama(), {"input_ids": torch.ones(2, 8, dtype=torch.long), "other": torch.ones(2)}),
        (llama(), {"input_ids": torch.ones(2, 8, dtype=torch.long)}),
    ],
    ids=["no configuration", "another argument", "no loss"],
)
def test_a_model_that_can_not_be_repeated_raises_and_leaves_nothing(model, batch):
    before = left_behind()
    with pytest.raises((TypeError, AttributeError)):
        offline.count(model, example_of(batch))
    assert left_behind() == before


def mixtral(active):
    from transformers import MixtralConfig, MixtralForCausalLM

    small = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0}
    return MixtralForCausalLM(MixtralConfig(**small, num_local_experts=8, num_experts_per_tok=active))


@each_row(
    "make",
    [
        *[partial(llama, tie_word_embeddings=tied, num_hidden_layers=2 - tied) for tied in (False, True)],
        partial(llama, tie_word_embeddings=True, head_dim=16),
        partial(llama, head_dim=16),
        *[partial(mixtral, active) for active in (1, 2, 8)],
    ],
)
def test_the_closed_form_of_a_decoder_is_its_count(make):
    model = make()
    true, form = counted(model, ids(3, 8)).work(), closed_form(model, example_of(ids(3, 8)))
    assert 0 <= true.model_flops - form.model_flops < 0.01 * true.model_flops, "angles written as a product"
    model.config = None
    assert closed_form(model, example_of(ids(3, 8))) is None


class Twice(nn.Module):
    """Somebody's own attention, which runs another block twice."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        self.inner(*args, **kwargs)
        return self.inner(*args, **kwargs)


def with_own_attention():
    model = llama()
    model.model.layers[0].self_attn = Twice(model.model.layers[0].self_attn)
    return model


def pooled():
    from transformers import LlamaForSequenceClassification

    return LlamaForSequenceClassification(llama().config)


def repeated():
    model = llama()
    model.model.forward = lambda *_args, **_kwargs: None  # of whoever runs the layers six times
    return model


def adapted(kind="LoraConfig", **options):
    import peft

    usual = {"r": 2, "target_modules": ["q_proj", "v_proj"]} if kind == "LoraConfig" else {}
    return peft.get_peft_model(llama(), getattr(peft, kind)(task_type="CAUSAL_LM", **(usual | options)))


UNVOUCHED = {
    "own model": lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)),
    "own attention": with_own_attention,
    "pooled head": pooled,
    "own forward": repeated,
    "partly frozen": partly_frozen,
    "adapters": adapted,
    "unknown family": mamba,
}


@pytest.mark.filterwarnings("ignore")  # PEFT's, about its use of transformers
@each_row("kind", UNVOUCHED)
def test_a_model_that_might_cost_less_has_no_closed_form(kind):
    assert closed_form(UNVOUCHED[kind](), example_of(ids(3, 8))) is None


@pytest.mark.parametrize("more", [{"position_ids": torch.ones(3, 8)}, {"attention_mask": torch.ones(3, 8)}])
def test_rows_that_attention_may_take_apart_have_no_closed_form(more):
    model = llama()
    model.config._attn_implementation = "flash_attention_2"
    assert closed_form(model, example_of(ids(3, 8))) is not None
    assert closed_form(model, example_of(ids(3, 8, **more))) is None


ADAPTERS = {
    "LoRA": {},
    "LoRA with a trained head": {"modules_to_save": ["lm_head"]},
    "prompt tuning": {"kind": "PromptTuningConfig", "num_virtual_tokens": 4},
    "IA3": {"kind": "IA3Config", "target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
}


@pytest.mark.filterwarnings("ignore")  # PEFT's, about its use of transformers
@each_row(
    ("kind", "checkpointing"),
    [(kind, on) for kind in ADAPTERS for on in (False, True) if not (on and "prompt" in kind)],
)
def test_models_with_adapters_are_counted_as_they_are(kind, checkpointing):
    model = adapted(**ADAPTERS[kind]).train()
    if checkpointing:
        model.enable_input_require_grads()
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    batch = ids(3, 8) if kind != "prompt tuning" else ids(3, 8, attention_mask=torch.ones(3, 8, dtype=torch.long))
    found = offline.count(model, example_of(batch))
    assert found.work() == counted(model, batch).work()
    assert (found.errors, found.observed.unknown) == ({}, {})


REDUCING = """
class Reducing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.config = nn.Linear(4, 4), None

    def forward(self, x):
        hidden = self.layer(x)
        torch.distributed.all_reduce(hidden)
        return SimpleNamespace(loss=hidden.sum())
"""


def test_a_copy_talks_to_no_other_rank(tmp_path):
    names = {"__name__": "transformers.reducing", "nn": nn, "torch": torch, "SimpleNamespace": SimpleNamespace}
    exec(REDUCING, names)  # stock code, by its name
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="must not call c10d"):
            offline.count(names["Reducing"](), {"x": ((2, 4), torch.float32, torch.device("cpu"))})
    finally:
        torch.distributed.destroy_process_group()


def with_closure(model):
    projection = model.model.layers[0].mlp.down_proj
    original = projection.forward
    projection.forward = lambda hidden: original(hidden) * 1.0


def with_own_class(model):
    class Doubled(nn.Linear):
        def forward(self, hidden):
            return 2 * super().forward(hidden)

    model.lm_head = Doubled(model.config.hidden_size, model.config.vocab_size)


def with_compiled_layer(model):
    model.model.layers[0].compile(backend="eager")


def with_compiled_wrapper(model):
    model.model.layers[0] = torch.compile(model.model.layers[0], backend="eager")


def with_flex_attention(model):
    model.config._attn_implementation = "flex_attention"


def with_loss(model):
    model.loss_function = lambda logits, labels, **_: logits.sum()


def with_activation(model):
    perceptron = model.model.layers[0].mlp
    del perceptron.act_fn
    perceptron.act_fn = lambda hidden: hidden * 2


def with_attention(model):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS["own"] = lambda *_args, **_kwargs: None
    model.config._attn_implementation_internal = "own"


def with_callable_object(model):
    model.model.norm.extra = CallableObject()


class CallableObject:
    def __call__(self):
        raise NotImplementedError


PROGRAMS = (
    with_closure, with_own_class, with_compiled_layer, with_compiled_wrapper, with_flex_attention, with_loss,
    with_activation, with_attention, with_callable_object,
)  # fmt: skip


@pytest.mark.parametrize("change", PROGRAMS)
def test_a_copy_runs_no_code_of_the_program(change):
    model = llama()
    change(model)
    with pytest.raises(TypeError):
        offline.count(model, example_of(ids(2, 8)))
    assert all(parameter.grad is None for parameter in model.parameters())
    torch._dynamo.reset()


@contextmanager
def watched_globally():
    hook = register_module_forward_hook(lambda *_: None)
    yield
    hook.remove()


def saved_by_hooks():
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


@pytest.mark.parametrize("hooks", [watched_globally, saved_by_hooks])
def test_hooks_of_the_program_see_no_copy(hooks):
    with hooks(), pytest.raises(TypeError, match="hooks of the program"):
        offline.count(llama(), example_of(ids(2, 8)))


def test_a_copy_leaves_all_generators_as_they_were():
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    convolutions = {"conv_dim": (16,), "conv_stride": (5,), "conv_kernel": (10,), "num_conv_pos_embeddings": 4}
    masks = {"num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.5, "mask_time_length": 2}
    model = Wav2Vec2ForSequenceClassification(Wav2Vec2Config(**sizes, **convolutions, **masks)).train()
    batch = {"input_values": torch.randn(2, 400), "labels": torch.zeros(2, dtype=torch.long)}
    with torch.random.fork_rng():
        before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002 the model's
        with suppress(Exception):  # masks may need numbers, which a copy has not
            offline.count(model, example_of(batch))
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002 as above


def test_a_replaced_function_of_a_model_is_code_of_the_program(monkeypatch):
    model = llama()
    monkeypatch.setattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", lambda *_: None)
    with pytest.raises(TypeError, match="code of the program"):
        offline.count(model, example_of(ids(2, 8)))
