"""Memory before the run: estimates beside measured steps.

    python benchmarks/memory_estimates.py   # 14 model configs x 3 optimizers x checkpointing on and off

The estimate reads a config.json, and the measured step is the `memory` record of a plain loop on the CPU. A
second opinion is the peak of torch's CPU allocator, by the memory events of torch.profiler.
"""

import argparse
import contextlib
import io
import itertools
import json
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
PARTS = ("weights", "gradients", "optimizer", "activations", "temporary", "peak")
OPTIMIZERS = ("adamw", "sgd", "adafactor")
WIDE = {"hidden_size": 64, "intermediate_size": 176, "vocab_size": 512}


def configuration(kind, **more):
    from flops.test_conventions_counted import OWN, SMALL

    values = OWN.get(kind, SMALL) | {"num_hidden_layers": 4, "n_layer": 4} | more
    if kind == "gpt2":
        values["n_positions"] = 1024
    return {"model_type": kind, "max_position_embeddings": 1024} | values


def real_model(values, *, checkpointing):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        values["model_type"], **{k: v for k, v in values.items() if k != "model_type"}
    )
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    if checkpointing:
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)({"use_reentrant": False})
    return model


def estimated(values, batch, seq, optimizer, *, checkpointing=False):
    """Bytes by part, as `perf-callbacks memory config.json` prints them."""
    from perf_callbacks.commands import memory_estimate

    parser = argparse.ArgumentParser()
    memory_estimate.add_arguments(parser)
    words = ["--seq", str(seq), "--optimizer", optimizer, "--dtype", "fp32", "--cpu"]
    arguments = parser.parse_args([*words, *(["--checkpointing"] if checkpointing else [])])
    with tempfile.TemporaryDirectory() as directory:
        arguments.path, arguments.batch = Path(directory) / "config.json", batch
        arguments.path.write_text(json.dumps(values))
        found = memory_estimate.estimator(arguments)
    return lambda size: found.sizes(size, found.layers if checkpointing else 0)


def batches(batch, seq, number):
    import torch

    torch.manual_seed(1)
    for _ in range(number):
        ids = torch.randint(3, 90, (batch, seq))
        yield {"input_ids": ids, "labels": ids}


def measured(values, batch, seq, optimizer, *, checkpointing):
    """GB by part of the `memory` record of a loop, and the peak by torch's own allocator."""
    import torch

    from perf_callbacks import PerfConfig
    from perf_callbacks.loop import measure
    from perf_callbacks.memory.simulated_step import OPTIMIZERS as MAKE

    model = real_model(values, checkpointing=checkpointing)
    chosen = MAKE[optimizer](model.parameters())

    def step(inputs):
        model(**inputs, use_cache=False).loss.backward()
        chosen.step()
        chosen.zero_grad()

    with tempfile.TemporaryDirectory() as directory:
        config = PerfConfig(output_dir=directory)
        loader = [*batches(batch, seq, 4)]
        with (
            contextlib.redirect_stdout(io.StringIO()),
            measure(model=model, optimizer=chosen, loader=loader, config=config) as perf,
        ):
            for inputs in perf.loader:
                step(inputs)
        found = perf.summary.memory.parts_gb
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(loader[0])
    held = most = 0
    events = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return found, found["weights"] + found["optimizer"] + most / 1e9


def parts(arguments):
    from perf_callbacks.flops.calculator.architecture import FAMILIES

    batch, seq = 4, 128
    kinds = arguments.only or [*FAMILIES]
    cases = [*itertools.product(kinds, OPTIMIZERS, (False, True))]
    worst = dict.fromkeys([*PARTS, "peak of the allocator"], 0.0)
    print("| model | optimizer | checkpointing |", " | ".join(PARTS), "| peak of the allocator |")
    print("|---" * 3 + "|---:" * 7 + "|")
    for kind, optimizer, checkpointing in cases:
        values = configuration(kind, **(WIDE if kind not in {"gpt2", "bloom"} else {}))
        guess = estimated(values, batch, seq, optimizer, checkpointing=checkpointing)(batch)
        truth, allocator = measured(values, batch, seq, optimizer, checkpointing=checkpointing)
        off = {part: guess[part] / truth[part] - 1 for part in PARTS} | {
            "peak of the allocator": guess["peak"] / allocator - 1
        }
        worst = {part: max(worst[part], abs(error)) for part, error in off.items()}
        shown = [f"{truth[part] * 1000:.3f} MB {off[part]:+.2%}" for part in PARTS]
        shown.append(f"{allocator * 1000:.3f} MB {off['peak of the allocator']:+.2%}")
        print(f"| {kind} | {optimizer} | {'on' if checkpointing else 'off'} |", " | ".join(shown), "|", flush=True)
    print(f"\n{len(cases)} cases; largest error:", ", ".join(f"{part} {error:.2%}" for part, error in worst.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="types of models")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()
    parts(arguments)


if __name__ == "__main__":
    main()
