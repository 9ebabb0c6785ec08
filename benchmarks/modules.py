"""FLOPs of each module's forward: ours beside DeepSpeed's profiler and fvcore, for three models of transformers.

A module's number includes its submodules, and layers of a list are summed up. Llama and BERT have two layers, ResNet
has two stages of two layers. fvcore and DeepSpeed count multiply-adds, and a multiply-add is two FLOPs. fvcore also
counts norms and pooling, and DeepSpeed's FLOPs include elementwise operations, norms and pooling.

    pip install fvcore deepspeed    # who is not installed is left out
    python benchmarks/modules.py
"""

import argparse
import importlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import nn

from perf_callbacks.flops.counting.counter import FlopCounter
from perf_callbacks.kernel.fit.module_paths import ModulePaths

VOCABULARY, ROWS, LENGTH = 1000, 2, 128
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2}


class Bare(nn.Module):
    """A model that takes a tensor and returns a tensor, as tools that trace need it."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model.eval(), name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(**{self.name: x}).logits


def llama(attention: str) -> tuple[Bare, torch.Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**TEXT, num_attention_heads=4, num_key_value_heads=2, attn_implementation=attention)
    return Bare(LlamaForCausalLM(config), "input_ids"), torch.randint(0, VOCABULARY, (ROWS, LENGTH))


def bert(attention: str) -> tuple[Bare, torch.Tensor]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**TEXT, num_attention_heads=4, attn_implementation=attention)
    return Bare(BertForMaskedLM(config), "input_ids"), torch.randint(0, VOCABULARY, (ROWS, LENGTH))


def resnet(_: str) -> tuple[Bare, torch.Tensor]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], num_labels=10)
    return Bare(ResNetForImageClassification(config), "pixel_values"), torch.randn(ROWS, 3, 64, 64)


def ours(model: Bare, x: torch.Tensor) -> Mapping[str, Mapping[str, float]]:
    with FlopCounter(model=model) as counter:
        model(x)
    lines = {line.path: line.forward_flops for line in counter.modules.lines(counter.work())}
    paths = ModulePaths(model).modules
    return {
        "ours": {
            path: sum(flops for one, flops in lines.items() if not path or f"{one}.".startswith(f"{path}."))
            for path in paths
        }
    }


def fvcore(model: Bare, x: torch.Tensor) -> Mapping[str, Mapping[str, float]]:
    from fvcore.nn import FlopCountAnalysis

    found = FlopCountAnalysis(model, x).unsupported_ops_warnings(enabled=False).by_module()
    return {"fvcore x 2": grouped(model, {name: 2 * found[name] for name, _ in model.named_modules()})}


def deepspeed(model: Bare, x: torch.Tensor) -> Mapping[str, Mapping[str, float]]:
    from deepspeed.profiling.flops_profiler.profiler import FlopsProfiler, get_module_flops, get_module_macs

    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(x)
    flops, macs = [
        grouped(model, {name: read(module) for name, module in model.named_modules()})
        for read in (get_module_flops, lambda module: 2 * get_module_macs(module))
    ]
    profiler.end_profile()
    return {"DeepSpeed, MACs x 2": macs, "DeepSpeed, FLOPs": flops}


def grouped(model: Bare, found: Mapping[str, float]) -> Mapping[str, float]:
    """Sum up modules whose paths are the same but for numbers."""
    paths, total = ModulePaths(model).by_id, Counter[str]()
    for name, module in model.named_modules():
        total[paths[id(module)]] += found[name]
    return total


TOOLS: Mapping[str, Callable[[Bare, torch.Tensor], Mapping[str, Mapping[str, float]]]] = {
    "fvcore": fvcore,
    "deepspeed": deepspeed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager")
    attention = parser.parse_args().attention
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for make in (llama, bert, resnet):
        torch.manual_seed(0)
        model, x = make(attention)
        columns = dict(ours(model, x))
        for needs, tool in TOOLS.items():
            try:
                importlib.import_module(needs)
                columns |= tool(model, x)
            except Exception as error:  # noqa: BLE001 not installed, or it can't count this model
                print(f"{needs} is left out: {type(error).__name__}: {str(error).splitlines()[0]}.\n")
        print(f"\n| {type(model.model).__name__} |", " | ".join(columns), "|\n|---" + "|---:" * len(columns) + "|")
        for path in columns["ours"]:
            if path and any(found[path] for found in columns.values()):
                print(f"| `{path.removeprefix('model.') if path != 'model' else 'all'}` |", end=" ")
                print(" | ".join([f"{found[path]:,.0f}" for found in columns.values()]), "|")


if __name__ == "__main__":
    main()
