"""Train GPT-2 small with the Hugging Face `Trainer` on a GPU, and compare steps, FLOPs and MFU with figures by hand.

PYTHONPATH=src python benchmarks/gpu_trainer.py
PYTHONPATH=src python benchmarks/gpu_trainer.py healthy loader --steps 200

Each run has one fault by name, or none. "By hand" means: a CUDA event at the end of each step, recorded by a callback
of this file, and FLOPs by the formula below. A verdict needs ten seconds of steps, so raise `--steps` to see one. Needs
a GPU and transformers; nothing is downloaded.
"""

import argparse
import time
from itertools import pairwise

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from perf_callbacks.journal import columns
from perf_callbacks.transformers import PerfCallback

LENGTH, WIDE, LAYERS, WORDS = 1024, 768, 12, 50257
FAULTS = {
    "healthy": {},
    "fp32": {"bf16": False},
    "loader": {},
    "callback": {},
    "small": {"per_device_train_batch_size": 1},
    "recompute": {"gradient_checkpointing": True},
}
"""Arguments of the `Trainer` by fault. A slow loader and a slow callback are in the classes below."""

COMPARED = 40
"""Last steps that are compared."""


class Text(Dataset):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.seconds:
            time.sleep(self.seconds)
        ids = torch.randint(0, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class ByHand(TrainerCallback):
    """Records an event at the end of each step; with `seconds`, then sleeps."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.events = seconds, []

    def on_step_end(self, *_arguments, **_more) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append(event)
        if self.seconds:
            time.sleep(self.seconds)

    def step_times(self) -> list[float]:
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1000 for a, b in pairwise(self.events[-COMPARED - 1 :])]


def flops(batch: int) -> int:
    """FLOPs of a step: three times those of the forward, whose products are the layers', the head's and attention's."""
    weights = LAYERS * 12 * WIDE * WIDE + WORDS * WIDE
    scores = LAYERS * 2 * 2 * batch * LENGTH * LENGTH * WIDE
    return 3 * (2 * batch * LENGTH * weights + scores)


def train(fault: str, steps: int) -> str:
    """A row of the table."""
    by_hand = ByHand(0.15 if fault == "callback" else 0.0)
    arguments = {"per_device_train_batch_size": 8, "bf16": True, "save_strategy": "no", "report_to": "none"}
    args = TrainingArguments(
        output_dir=f"out/{fault}", max_steps=steps, disable_tqdm=True, **(arguments | FAULTS[fault])
    )
    model = GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0))
    data = Text(0.012 if fault == "loader" else 0.0)
    perf = PerfCallback()
    Trainer(model=model, args=args, train_dataset=data, callbacks=[perf, by_hand]).train()
    true = sum(by_hand.step_times()) / COMPARED
    ours = sum(columns(args.output_dir)["step_time"][-COMPARED:]) / COMPARED
    summary = perf.summary
    counted = summary.flops.model_flops / summary.flops.steps
    return (
        f"| {fault} | {true * 1e3:.3f} ms | {ours * 1e3:.3f} ms | {flops(args.per_device_train_batch_size):,} "
        f"| {counted:,.0f} | {summary.mfu:.2%} | {summary.hfu:.2%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", default=list(FAULTS), help=", ".join(FAULTS))
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    rows = [train(fault, options.steps) for fault in options.faults]
    print(
        "| run | step by hand | step | FLOPs by hand | FLOPs | MFU | HFU |", "|---|---|---|---|---|---|---|", sep="\n"
    )
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()
