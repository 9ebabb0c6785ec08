"""What a step costs in which FLOPs are counted, and what is counted: ours beside others, and written down by hand.

Llama of four layers, fed 2 x 128 tokens, trained on the CPU with one thread. A normal step has its turn before and
after each counted one, within one process. Costs are CPU time, which others who use the machine disturb less: the
median of the ratios to the two normal steps around, with a 95 % bootstrap interval. Who counts beside a step and not in
one is timed with a step after it.

    pip install peft calflops deepspeed    # who is not installed is left out
    python benchmarks/counting.py --repeats 15 --hidden 256 512
"""

import argparse
import contextlib
import gc
import importlib
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from turns import interval

from perf_callbacks.flops.window import CountWindow

BATCH, LENGTH, RANK, ADAPTED = 2, 128, 8, ("q_proj", "v_proj")
CASES = {
    "eager attention": ("eager", "none", "full"),
    "SDPA": ("sdpa", "none", "full"),
    "SDPA, LoRA": ("sdpa", "none", "lora"),
    "SDPA, checkpointing": ("sdpa", "early", "full"),
    "SDPA, LoRA, checkpointing": ("sdpa", "early", "lora"),
}
TIMED = "SDPA"


def shape(hidden: int) -> dict[str, int]:
    return {
        "vocab_size": 2048,
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
        "num_hidden_layers": 4,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "max_position_embeddings": LENGTH,
    }


class Case:
    """A model that is trained in one way, on one batch."""

    def __init__(self, hidden: int, attention: str, checkpointing: str, training: str) -> None:
        self.hidden, self.attention, self.checkpointing, self.training = hidden, attention, checkpointing, training
        self.model = self.build()
        self.batch = {name: torch.randint(0, 2048, (BATCH, LENGTH)) for name in ("input_ids", "labels")}
        self.optimizer = torch.optim.AdamW([one for one in self.model.parameters() if one.requires_grad])

    def build(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**shape(self.hidden), attn_implementation=self.attention)).train()
        if self.checkpointing != "none":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if self.training == "lora":
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(r=RANK, target_modules=list(ADAPTED), lora_dropout=0.0))
        return model

    def step(self) -> None:
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def by_hand(self):
        from flops.by_hand import FULL, Hand, Training
        from flops.formulas_by_hand import llama
        from flops.models import rotary_is_a_product

        trained = FULL if self.training == "full" else Training(name="lora", adapted=ADAPTED, rank=RANK)
        hand = Hand(
            training=trained,
            fused=self.attention == "sdpa",
            checkpointing=self.checkpointing,
            inputs_need=self.training == "lora" and self.checkpointing != "none",  # transformers asks for it
        )
        config = SimpleNamespace(**shape(self.hidden), rotary_is_a_product=rotary_is_a_product("Llama"))
        llama(hand, config, BATCH, LENGTH)
        return hand.model_flops, sum(hand.by_phase.values())


@dataclass(frozen=True)
class Tool:
    """Somebody who counts."""

    name: str
    count: Callable[[Case], tuple[int, ...]]
    """Counts in a step of a case, or beside one that follows."""
    needs: str = "torch"


def ours(case: Case) -> tuple[int, int]:
    window = CountWindow()
    window.open()
    case.step()
    window.close()
    work = window.counter.work()
    return work.model_flops, work.hardware_flops


def stock(case: Case) -> tuple[int]:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as mode:
        case.step()
    return (mode.get_total_flops(),)


def lightning(case: Case) -> tuple[int]:
    from lightning.fabric.utilities.throughput import measure_flops

    with torch.device("meta"):
        model = case.build()
    batch = {name: one.to("meta") for name, one in case.batch.items()}
    flops = measure_flops(model, partial(model, **batch), lambda output: output.loss)
    case.step()
    return (flops,)


def deepspeed(case: Case) -> tuple[int]:
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    profiler = FlopsProfiler(case.model)
    profiler.start_profile()
    case.step()
    flops = profiler.get_total_flops()
    profiler.end_profile()
    return (int(flops),)


def calflops(case: Case) -> tuple[int]:
    from calflops import calculate_flops

    flops, _, _ = calculate_flops(
        case.model,
        kwargs=dict(case.batch),
        include_backPropagation=True,
        print_results=False,
        print_detailed=False,
        output_as_string=False,
    )
    case.model.train()
    case.step()
    return (int(flops),)


def six_n(case: Case) -> tuple[int]:
    case.step()
    return (6 * BATCH * LENGTH * sum(one.numel() for one in case.model.parameters()),)


def total_flos(case: Case) -> tuple[int]:
    """As `Trainer.floating_point_ops` has it."""
    case.step()
    return (6 * BATCH * LENGTH * case.model.num_parameters(exclude_embeddings=True),)


TOOLS = (
    Tool("ours", ours),
    Tool("torch's FlopCounterMode", stock),
    Tool("Lightning's measure_flops, on meta", lightning, "lightning"),
    Tool("DeepSpeed's flops profiler", deepspeed, "deepspeed.profiling.flops_profiler"),
    Tool("calflops, with its backward", calflops, "calflops"),
    Tool("transformers' total_flos", total_flos),
    Tool("6N, every parameter", six_n),
)


def installed(tool: Tool) -> bool:
    try:
        importlib.import_module(tool.needs)
    except Exception as error:  # noqa: BLE001 not installed, or it needs what is not there
        print(f"{tool.name} is left out: {type(error).__name__}: {str(error).splitlines()[0]}.\n")
        return False
    return True


def cpu_seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    with quiet():
        run()
    return time.process_time() - start


def cost(case: Case, tools: list[Tool], repeats: int) -> None:
    """Print what each adds to a normal step."""
    able = [tool for tool in (*tools, AGAIN) if isinstance(_counted(tool, case)[0], int)]  # what is done once, too
    steps, ratios = [], {tool.name: [] for tool in able}
    for _ in range(repeats):
        for tool in able:
            before = cpu_seconds(case.step)
            counted = cpu_seconds(partial(tool.count, case))
            after = cpu_seconds(case.step)
            steps += [before, after]
            ratios[tool.name].append(counted / ((before + after) / 2))
    print(f"\nhidden size {case.hidden}: a step takes {statistics.median(steps):.3f} s of CPU time; {repeats} turns\n")
    print("| who counts | counted step / normal step | 95 % interval |\n|---|---:|---|")
    for name, times in ratios.items():
        low, high = interval(times)
        print(f"| {name} | {statistics.median(times):.3f} | [{low:.3f}, {high:.3f}] |")


def nobody(case: Case) -> tuple[int]:
    case.step()
    return (0,)


AGAIN = Tool("nobody (the control)", nobody)


def figures(hidden: int, tools: list[Tool]) -> None:
    """Print what each counts, in millions, over the model FLOPs by hand."""
    cases = {name: Case(hidden, *how) for name, how in CASES.items()}
    truths = {name: case.by_hand() for name, case in cases.items()}
    print(f"\nhidden size {hidden}: what is counted, in millions of FLOPs, and over the model FLOPs by hand\n")
    print("| who counts |", " | ".join(cases), "|\n|---" + "|---:" * len(cases) + "|")
    for kind, name in enumerate(("by hand: model", "by hand: hardware")):
        cells = [_cell(truth[kind], truth[0]) for truth in truths.values()]
        print(f"| {name} |", " | ".join(cells), "|")
    for tool in tools:
        rows = [_counted(tool, case) for case in cases.values()]
        for kind in range(max(len(row) for row in rows)):
            name = f"{tool.name}: {('model', 'hardware')[kind]}" if tool.count is ours else tool.name
            cells = [
                _cell(row[kind], truth[0]) if isinstance(row[0], int) else row[0]
                for row, truth in zip(rows, truths.values(), strict=True)
            ]
            print(f"| {name} |", " | ".join(cells), "|")


def _counted(tool: Tool, case: Case) -> tuple[int | str, ...]:
    try:
        with quiet():
            return tool.count(case)
    except Exception as error:  # noqa: BLE001 what others can't count is a finding
        return (type(error).__name__,)


def _cell(flops: int, truth: int) -> str:
    return f"{flops / 1e6:,.1f} ({flops / truth:.4f})"


@contextlib.contextmanager
def quiet():
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 512])
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    tools = [tool for tool in TOOLS if installed(tool)]
    counters = [tool for tool in tools if tool.count not in {six_n, total_flos}]
    figures(arguments.hidden[-1], tools)
    for hidden in arguments.hidden:
        cost(Case(hidden, *CASES[TIMED]), counters, arguments.repeats)


if __name__ == "__main__":
    main()
