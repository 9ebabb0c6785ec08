"""What a step costs in which FLOPs are counted: ours, with and without modules, beside torch's counter.

A Llama of four layers, fed 2 x 128 tokens, trained on the CPU with one thread. A normal step has its turn before and
after each counted one, within one process. Costs are CPU time, which others who use the machine disturb less: the
median of the ratios to the two normal steps around, with a 95 % bootstrap interval.

    python benchmarks/counting.py --repeats 15 --hidden 256 512
"""

import argparse
import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode
from turns import interval

from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.flops.counting.counter import FlopCounter

BATCH, LENGTH = 2, 128


class Case:
    """A model, its optimizer and one batch."""

    def __init__(self, hidden: int) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=2048, hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=4,
            num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, max_position_embeddings=LENGTH,
            attn_implementation="sdpa",
        )  # fmt: skip
        self.model = LlamaForCausalLM(config).train()
        self.batch = {name: torch.randint(0, 2048, (BATCH, LENGTH)) for name in ("input_ids", "labels")}
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self) -> None:
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def ours(case: Case, *, modules: bool) -> int:
    window = CountWindow(counter=FlopCounter(model=case.model if modules else None))
    window.open()
    case.step()
    window.close()
    work = window.counter.work()
    if modules:
        window.counter.modules.lines(work)
    return work.model_flops


def stock(case: Case) -> int:
    with FlopCounterMode(display=False) as mode:
        case.step()
    return mode.get_total_flops()


COUNTERS: dict[str, Callable[[Case], int | None]] = {
    "ours": partial(ours, modules=True),
    "ours, without modules": partial(ours, modules=False),
    "torch's FlopCounterMode": stock,
    "nobody (the control)": Case.step,
}


def cpu_seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    run()
    return time.process_time() - start


def cost(case: Case, repeats: int) -> None:
    """Print what each adds to a normal step, and what it counts."""
    flops = {name: count(case) for name, count in COUNTERS.items()}  # what is done once, too
    steps, ratios = [], {name: [] for name in COUNTERS}
    for _ in range(repeats):
        for name, count in COUNTERS.items():
            before = cpu_seconds(case.step)
            counted = cpu_seconds(partial(count, case))
            after = cpu_seconds(case.step)
            steps += [before, after]
            ratios[name].append(counted / ((before + after) / 2))
    hidden = case.model.config.hidden_size
    print(f"\nhidden size {hidden}: a step takes {statistics.median(steps):.3f} s of CPU time; {repeats} turns\n")
    print("| who counts | FLOPs | counted step / normal step | 95 % interval |\n|---|---:|---:|---|")
    for name, times in ratios.items():
        found = interval(times)
        print(
            f"| {name} | {flops[name] or 0:,} | {statistics.median(times):.3f} | [{found.low:.3f}, {found.high:.3f}] |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 512])
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for hidden in arguments.hidden:
        cost(Case(hidden), arguments.repeats)


if __name__ == "__main__":
    main()
