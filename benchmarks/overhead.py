"""What measuring costs, in microseconds per optimizer step.

Variants take turns, block by block, within one process and one training run: none, none again (the A/A control), an
empty callback, ours. Counted is CPU time, which a busy machine disturbs less than it does the clock. A block's
figure is its mean step, so that what is done every 64 steps is in it; it is paired with the "none" block of its cycle.
Printed: the median of the differences and its 95 % bootstrap interval.

    python benchmarks/overhead.py --cycles 40
"""

import argparse
import contextlib
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

BLOCK = 128
SETTLE = 4
"""Steps at the start of a block that don't count: switching costs."""
ROWS = 32


def interval(differences: list[float]) -> tuple[float, float]:
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(differences, k=len(differences))) for _ in range(2000))
    return medians[50], medians[1949]


def report(door: str, blocks: dict[str, list[float]]) -> None:
    print(f"{door}: a step without anything takes {statistics.median(blocks['none']) * 1e6:.0f} us")
    for name, seconds in blocks.items():
        if name != "none":
            differences = [(a - b) * 1e6 for a, b in zip(seconds, blocks["none"], strict=True)]
            low, high = interval(differences)
            print(f"  {name:<16}{statistics.median(differences):>8.1f}   [{low:.1f}, {high:.1f}]")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(64, 32), nn.Flatten(), nn.Linear(256, 16))


def loop(cycles: int, directory: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = {"input_ids": torch.randint(0, 64, (4, 8)), "labels": torch.randint(0, 16, (4,))}

    def steps(loader) -> float:
        start = 0.0
        for number, inputs in enumerate(loader):
            if number == SETTLE:
                start = time.process_time()
            loss = nn.functional.cross_entropy(model(inputs["input_ids"]), inputs["labels"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.process_time() - start) / BLOCK

    def ours() -> float:
        config = PerfConfig(output_dir=directory)
        with measure(model=model, optimizer=optimizer, loader=[batch] * (BLOCK + SETTLE), config=config) as perf:
            return steps(perf.loader)

    variants: dict[str, Callable[[], float]] = {
        "none": lambda: steps([batch] * (BLOCK + SETTLE)),
        "none again": lambda: steps([batch] * (BLOCK + SETTLE)),
        "ours": ours,
    }
    blocks: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(cycles):
        for name, run in variants.items():
            with contextlib.redirect_stdout(None):
                blocks[name].append(run())
    report("plain loop", blocks)


class Rows(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return {"input_ids": torch.zeros(8, dtype=torch.long), "labels": torch.tensor(index % 16)}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, input_ids, labels):
        return {"loss": nn.functional.cross_entropy(self.network(input_ids), labels)}


class TakeTurns(TrainerCallback):
    """Switches between variants while one `train` runs."""

    def __init__(self, directory: str) -> None:
        self.ours = PerfCallback(PerfConfig(output_dir=directory))
        self.blocks: dict[str, list[float]] = {"none": [], "none again": [], "empty callback": [], "ours": []}
        self.turns = itertools.cycle(self.blocks)
        self.turn = "none"
        self.steps = 0
        self.start = 0.0
        self.trainer: Trainer | None = None

    def on_step_end(self, args, state, control, **_):
        self.steps += 1
        if self.steps == SETTLE:
            self.start = time.process_time()
        if self.steps == SETTLE + BLOCK:
            if state.global_step > 4 * (SETTLE + BLOCK):
                self.blocks[self.turn].append((time.process_time() - self.start) / BLOCK)
            self.steps = 0
            self.switch(args, state, control)

    def switch(self, args, state, control) -> None:
        handler = self.trainer.callback_handler
        if self.turn == "ours":
            with contextlib.redirect_stdout(None):
                self.ours.on_train_end(args, state, control)
        others = [other for other in handler.callbacks if type(other) not in {PerfCallback, TrainerCallback}]
        self.turn = next(self.turns)
        if self.turn == "ours":
            others.insert(0, self.ours)
            with contextlib.redirect_stdout(None):
                self.ours.begin(args, state, self.trainer)
        elif self.turn == "empty callback":
            others.insert(0, TrainerCallback())
        handler.callbacks = others


def trainer(cycles: int, directory: str) -> None:
    turns = TakeTurns(directory)
    arguments = TrainingArguments(
        output_dir=directory,
        max_steps=(cycles + 1) * 4 * (SETTLE + BLOCK) + 1,
        per_device_train_batch_size=4,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    turns.trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Rows(), callbacks=[turns])
    with contextlib.redirect_stdout(None):
        turns.trainer.train()
    count = min(map(len, turns.blocks.values()))
    report("Hugging Face Trainer", {name: seconds[:count] for name, seconds in turns.blocks.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=40)
    cycles = parser.parse_args().cycles
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as directory:
        loop(cycles, directory)
        trainer(cycles, directory)
