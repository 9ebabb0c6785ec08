"""What profiled steps cost: CPU time of a step under torch.profiler, and of the end of a profile with its file.

A Llama of eight tiny layers on a CPU, with one thread. All ways to record take turns in one process. The table shows
the least CPU time of a step, and of the end of a profile of three steps: stopping the profiler, and writing the trace.

    python benchmarks/profile_cost.py
"""

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from perf_callbacks.kernel.process.patches import Patches
from perf_callbacks.profiles.module_marks import marks

STEPS, TURNS = 3, 20

WAYS = {
    "shapes": {"record_shapes": True},
    "shapes and modules: as the callback records": {"record_shapes": True},
    "shapes and stacks": {"record_shapes": True, "with_stack": True},
}


def a_step() -> tuple[torch.nn.Module, Callable[[], None]]:
    """Return a model, and a function that trains it for a step."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, config.vocab_size, (2, 32))

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS)
    turns = parser.parse_args().turns
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    torch.set_num_threads(1)
    model, step = a_step()
    for _ in range(STEPS):
        step()
    steps, ends, sizes = defaultdict(list), defaultdict(list), {}
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.json"
        for _ in range(turns):
            steps["no profiler"] += [cpu_seconds(step) for _ in range(STEPS)]
            for name, options in WAYS.items():
                patches, profiler = Patches(), profile(activities=[ProfilerActivity.CPU], **options)
                profiler.start()
                if "modules" in name:
                    marks(model)(patches)
                steps[name] += [cpu_seconds(step) for _ in range(STEPS)]
                patches.restore()
                end = cpu_seconds(profiler.stop)
                ends[name].append(end + cpu_seconds(partial(profiler.export_chrome_trace, str(trace))))
                sizes[name] = trace.stat().st_size
    print(f"torch {torch.__version__}, {turns} turns of {STEPS} steps: least CPU time\n")
    print("| recorded | a step, ms | the end of a profile, ms | its file, MB |\n|---|---:|---:|---:|")
    for name, times in steps.items():
        end = f"{1e3 * min(ends[name]):.0f} | {sizes[name] / 1e6:.1f}" if name in ends else "— | —"
        print(f"| {name} | {1e3 * min(times):.1f} | {end} |")


if __name__ == "__main__":
    main()
