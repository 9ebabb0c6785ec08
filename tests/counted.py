"""Fits whose FLOPs are counted, what they really take, and what a count must not leave behind."""

import copy
import hashlib
import sys
import warnings
from importlib.metadata import version
from types import SimpleNamespace

import torch
import torch._dynamo  # it adds a filter of warnings when it is imported
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from trainings.models import VOCABULARY
from trainings.runs import records, steps

from perf_callbacks import PerfConfig
from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.kernel.engine.steps import COUNTED, RECOUNTED
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.loop import measure

ANGLES = int(version("transformers").partition(".")[0]) < 5
"""Whether the angles of positions in a Llama are a product, in single precision, once for all rows."""


def gpt2(**config):
    """A GPT-2 of one layer, the same each time."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128, "n_inner": 32}
    return GPT2LMHeadModel(GPT2Config(**(small | config)))


def mamba(name="Mamba", **config):
    """A Mamba of one layer, without kernels of its own."""
    import transformers

    torch.manual_seed(0)
    small = {"vocab_size": VOCABULARY, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "expand": 2}
    small |= {
        "Mamba": {"time_step_rank": 2},
        "Mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    }[name]
    kind = getattr(transformers, f"{name}Config")
    return getattr(transformers, f"{name}ForCausalLM")(kind(**(small | {"use_cache": False} | config)))


def ids(rows, length, **more):
    """A batch of token ids."""
    tokens = torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(rows * 1000 + length))
    return {"input_ids": tokens, "labels": tokens} | more


def loss_of(model, batch):
    """Of a model that is called with its batch, or of one that gives numbers."""
    out = model(**batch) if isinstance(batch, dict) else model(batch)
    return out.loss if hasattr(out, "loss") else out.square().mean()


def truth(model, batch):
    """Model FLOPs of a forward and a backward with this batch, on a model of its own."""
    model = copy.deepcopy(model)
    with torch.random.fork_rng(), FlopCounter() as counter:
        loss_of(model, batch).backward()
    return counter.work().model_flops


def loop(directory, model, batches, *, flops="count", each=1, **config):
    """Train in a plain loop, `each` batches a step; the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    config = PerfConfig(output_dir=str(directory), flops=flops, **config)
    with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
        for number, batch in enumerate(perf.loader, start=1):
            loss = loss_of(model, batch)
            loss.backward()
            losses.append(loss.item())
            if number % each == 0:
                optimizer.step()
                optimizer.zero_grad()
    return losses


def counts(directory, **which):
    """The records of what was counted."""
    return records(directory, Flops, **which)


def known(directory, **which):
    """Model FLOPs of each step in the journal; None where they are unknown."""
    return [step.get("model_flops") for step in steps(directory, **which)]


def excluded(directory, reasons=(COUNTED, RECOUNTED)):
    """The steps that are in no row because they were counted."""
    return [step["step"] for step in steps(directory) if step.get("excluded") in reasons]


_NO_HANDLER = SimpleNamespace(start_callbacks=[])


def left_behind():
    """What a count changes in the process while it goes on."""
    frame = sys.modules.get("torch._dynamo.eval_frame")
    return {
        "modes": list(_get_current_dispatch_mode_stack()),
        "stance": "default" if frame is None else frame._stance.stance,
        "before": dict(modules._global_forward_pre_hooks),
        "after": dict(modules._global_forward_hooks),
        "filters": list(warnings.filters),
        "profile": sys.getprofile(),
        "compilations": [*getattr(sys.modules.get("torch._dynamo"), "callback_handler", _NO_HANDLER).start_callbacks],
    }


def bits(model):
    """Its weights, to the last bit, told so that a difference is shown at once."""
    return {name: _digest(value.detach().float().numpy()) for name, value in model.state_dict().items()}


def _digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]
