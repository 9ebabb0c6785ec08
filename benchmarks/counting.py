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
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from counters import AGAIN, TOOLS, Case, Tool, ours, six_n, total_flos
from turns import interval

CASES = {
    "eager attention": ("eager", "none", "full"),
    "SDPA": ("sdpa", "none", "full"),
    "SDPA, LoRA": ("sdpa", "none", "lora"),
    "SDPA, checkpointing": ("sdpa", "early", "full"),
    "SDPA, LoRA, checkpointing": ("sdpa", "early", "lora"),
}
TIMED = "SDPA"


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
        found = interval(times)
        print(f"| {name} | {statistics.median(times):.3f} | [{found.low:.3f}, {found.high:.3f}] |")


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


def compiled() -> None:
    """Print how many of two steps after a counted one still run what was compiled."""
    print("\n| who counts in a step | of the next 2 steps, compiled |\n|---|---:|")
    for tool in (AGAIN, *TOOLS[:2]):
        torch.compiler.reset()
        calls = []
        layer = torch.compile(torch.nn.Linear(8, 8), backend=partial(_noting, calls))
        step = partial(layer, torch.ones(2, 8))
        step()
        tool.count(SimpleNamespace(step=step))
        calls.clear()
        step()
        step()
        print(f"| {tool.name} | {len(calls)} |")


def _noting(calls: list[bool], graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
    """Compiles nothing, and notes each call of what would be compiled."""

    def noted(*args: object) -> object:
        calls.append(True)
        return graph.forward(*args)

    return noted


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
    compiled()
    figures(arguments.hidden[-1], tools)
    for hidden in arguments.hidden:
        cost(Case(hidden, *CASES[TIMED]), counters, arguments.repeats)


if __name__ == "__main__":
    main()
