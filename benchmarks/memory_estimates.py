"""Memory before the run: estimates beside measured steps, micro-batches under a limit, reports of failed allocations.

    python benchmarks/memory_estimates.py parts      # 14 model configs x 3 optimizers x checkpointing on and off
    python benchmarks/memory_estimates.py fits       # the largest micro-batch under a limit of the address space
    python benchmarks/memory_estimates.py failures   # failed allocations in each integration, by torch's own error

`parts`: the estimate reads a config.json, and the measured step is the `memory` record of a plain loop on the CPU. A
second opinion is the peak of torch's CPU allocator, by the memory events of torch.profiler.
`fits`: a process gets a limit (RLIMIT_AS) that leaves a random amount of memory. The predicted micro-batch must train
three steps, and the next larger must fail.
`failures`: the limit leaves too little memory for one allocation in forward, backward or optimizer.
"""

import argparse
import contextlib
import ctypes
import gc
import io
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from functools import partial
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


def in_child(work):
    """Run `work` in a fork. Return what it returns, or None if it dies."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, json.dumps(work()).encode())
        except BaseException:  # noqa: BLE001 the parent goes on
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        found = stream.read()
    os.waitpid(pid, 0)
    return json.loads(found) if found else None


def space():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def trains(values, batch, seq, optimizer, budget, *, checkpointing):
    """Whether three steps fit into `budget` bytes beyond what the process has; torch's error otherwise."""
    from perf_callbacks.memory.out_of_memory import failed_allocation
    from perf_callbacks.memory.simulated_step import OPTIMIZERS as MAKE

    def run(size):
        model = real_model(values, checkpointing=checkpointing)
        chosen = MAKE[optimizer](model.parameters())
        for inputs in batches(size, seq, 3):
            model(**inputs, use_cache=False).loss.backward()
            chosen.step()
            chosen.zero_grad()

    run(1)  # what libraries keep for good
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    resource.setrlimit(resource.RLIMIT_AS, (space() + budget, resource.RLIM_INFINITY))
    try:
        run(batch)
    except Exception as error:
        if failed_allocation(error) is None:
            raise
        return "fails"
    return "fits"


def fits(arguments):
    """The predicted micro-batch and the next larger, under random limits."""
    import torch
    import transformers  # noqa: F401 before the fork

    torch.set_num_threads(1)
    seq, right = 1024, 0  # a sample takes 30 to 75 MB, so what the heap holds free hardly matters
    kinds = ("llama", "qwen3", "gemma", "gpt_neox", "starcoder2")
    print("| model | optimizer | checkpointing | limit | predicted | trains | one more |")
    print("|---" * 3 + "|---:" * 2 + "|---|---|")
    draw = random.Random(arguments.seed)
    for number in range(arguments.times):
        kind, optimizer = kinds[number % len(kinds)], OPTIMIZERS[number % 3]
        checkpointing = number % 4 == 3
        values = configuration(kind, hidden_size=128, intermediate_size=352, vocab_size=2048, num_hidden_layers=4)
        peak = estimated(values, 1, seq, optimizer, checkpointing=checkpointing)
        limit = draw.uniform(peak(3)["peak"], peak(10)["peak"])
        predicted = max(size for size in range(1, 12) if peak(size)["peak"] <= limit)
        outcomes = [
            in_child(partial(trains, values, size, seq, optimizer, int(limit * 1e9), checkpointing=checkpointing))
            for size in (predicted, predicted + 1)
        ]
        right += outcomes == ["fits", "fails"]
        position = (limit - peak(predicted)["peak"]) / (peak(predicted + 1)["peak"] - peak(predicted)["peak"])
        print(
            f"| {kind} | {optimizer} | {'on' if checkpointing else 'off'} "
            f"| {limit * 1000:.1f} MB ({position:.0%} on the way) | {predicted} | {outcomes[0]} | {outcomes[1]} |",
            flush=True,
        )
    print(f"\n{right} of {arguments.times} as predicted")


BIG = 4 * 2**30
WAYS = ("forward", "later forward", "backward", "optimizer", "counted forward")


def fail_in(way):
    """Let torch fail in this place: an allocation larger than the limit leaves."""
    import torch
    from torch.nn.modules import module as modules
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    resource.setrlimit(resource.RLIMIT_AS, (space() + BIG // 2, resource.RLIM_INFINITY))
    steps = [0]

    def allocate(*_):
        return torch.empty(BIG, dtype=torch.uint8)

    def forward(module, _inputs, output):
        if isinstance(module, torch.nn.Linear) and module.training and torch.is_grad_enabled():
            due = {"forward": steps[0], "counted forward": 1, "later forward": 3, "backward": 2}.get(way)
            if due == steps[0] and way == "backward" and output.requires_grad:
                output.register_hook(allocate)
            elif due == steps[0] and way != "backward":
                allocate()

    def step(*_):
        steps[0] += 1
        if way == "optimizer" and steps[0] == 3:
            allocate()

    modules.register_module_forward_hook(forward)
    register_optimizer_step_pre_hook(step)


def failure(door, way, directory):
    """Train through an integration until torch fails."""
    from short_trainings import DOORS

    os.dup2(os.open(directory / "stderr", os.O_CREAT | os.O_WRONLY), 2)
    fail_in(way)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            DOORS[door](directory, lambda _: None)
    except RuntimeError as error:
        return str(error)
    return None


def failures(arguments):
    """A report in the journal and on stderr, and the framework's own exception, in each integration."""
    import short_trainings  # noqa: F401 before the fork

    from perf_callbacks.journal import OutOfMemory, read

    good, total, slowest = 0, 0, 0.0
    print("| integration | way | stage | module | largest | seconds | exception goes on |")
    print("|---" * 5 + "|---:|---|")
    for door, way in itertools.product(arguments.doors, WAYS):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            os.chdir(directory)
            error = in_child(partial(failure, door, way, directory))
            found = [
                one.record
                for path in directory.rglob("rank0.jsonl")
                for one in read(path)
                if isinstance(one.record, OutOfMemory)
            ]
            text = (directory / "stderr").read_text()
            summaries = [*directory.rglob("summary0.json")]
        total += 1
        passes = error is not None and "DefaultCPUAllocator: can't allocate memory" in error
        good += len(found) == 1 and passes and "out of memory on cpu" in text and bool(summaries)
        for one in found:
            slowest = max(slowest, one.seconds)
            largest = one.largest[0] if one.largest else None
            shown = "—" if largest is None else f"{largest.path} {largest.kind}"
            print(
                f"| {door} | {way} | {one.stage} | {one.module} | {shown} | {one.seconds:.4f} | {passes} |", flush=True
            )
        if not found:
            print(f"| {door} | {way} | no report | | | | {passes} |", text[-500:], flush=True)
    print(f"\n{good} of {total} failed allocations with a report; the slowest took {slowest:.4f} s")
    killed()


def killed():
    """A process that the system kills leaves the summary so far."""
    from short_trainings import DOORS

    def work(directory):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        DOORS["loop"](directory, lambda step: (time.sleep(0.5), step == 7 and os.kill(os.getpid(), signal.SIGKILL)))

    with tempfile.TemporaryDirectory() as name:
        in_child(partial(work, Path(name)))
        print("after SIGKILL, summary0.json:", [path.name for path in Path(name).rglob("summary0.json")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("parts")
    one.add_argument("--only", nargs="*", help="types of models")
    one.set_defaults(run=parts)
    one = commands.add_parser("fits")
    one.add_argument("--times", type=int, default=20)
    one.add_argument("--seed", type=int, default=0)
    one.set_defaults(run=fits)
    one = commands.add_parser("failures")
    one.add_argument("--doors", nargs="*", default=["loop", "transformers", "lightning", "accelerate"])
    one.set_defaults(run=failures)
    arguments = parser.parse_args()
    settings = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_ARENA_MAX": "1"}  # the address space follows the tensors
    if any(os.environ.get(name) != value for name, value in settings.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | settings)
    warnings.simplefilter("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
