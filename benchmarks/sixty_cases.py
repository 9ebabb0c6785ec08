"""A hundred small trainings, whose samples, tokens, FLOPs, memory, steps and spans are known by arithmetic.

python benchmarks/sixty_cases.py                 # all of them: one line per number, then a table
python benchmarks/sixty_cases.py moe packed      # those whose name holds a word

A number is right, absent (unknown), marked (a lower bound, counted once, varying), or wrong.
"""

# ruff: noqa: ARG001, ARG002, ARG004, ARG005, SLF001  arguments are what frameworks pass; two have no public reset
import argparse
import contextlib
import dataclasses
import gc
import io
import logging
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import flex_attention as flex
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig, Summary
from perf_callbacks.journal import Flops, Gc, Memory, Row, Steps, read
from perf_callbacks.loop import measure

PEAKS = os.environ.get("CASE_PEAKS", "bf16=989.5,fp32=67,fp4=9000")
STEPS = 14  # the recount of step 11 is among them
CASES: dict[str, Callable[[], list["Number"]]] = {}


@dataclasses.dataclass
class Number:
    """A reported number (or one per step), and the truth: a value, or the ends of a range."""

    name: str
    got: Any
    truth: Any
    marks: tuple[str, ...] = ()
    tolerance: float = 0.0

    def outcome(self) -> str:
        pairs = list(zip(self.got, self.truth, strict=True)) if isinstance(self.got, list) else [(self.got, self.truth)]
        pairs = [
            (got, truth if isinstance(truth, tuple) else (truth, truth)) for got, truth in pairs if got is not None
        ]
        low = any(got < ends[0] * (1 - self.tolerance) for got, ends in pairs)
        high = any(got > ends[1] * (1 + self.tolerance) for got, ends in pairs)
        if not pairs:
            return "absent"
        if not low and not high:
            return "right"
        if "lower_bound" in self.marks and not high:
            return "marked"
        return "marked" if {"once", "varying", "at_most"} & set(self.marks) else "wrong"


@dataclasses.dataclass
class Reported:
    summary: Summary
    records: list[Any]

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def column(self, name: str) -> list[Any]:
        """Of all steps, in order; a column that is empty is unknown in all steps."""
        return [v for block in self.of(Steps) for v in (getattr(block, name) or [None] * len(block.step))]

    def marks(self) -> tuple[str, ...]:
        flops = self.summary.flops
        counts = self.of(Flops)
        names = {
            "lower_bound": any(count.lower_bound for count in counts) or (flops is not None and flops.lower_bound),
            "once": any("perf/flops_counted_once" in row.metrics for row in self.of(Row))
            and (flops is None or flops.checked_step is None),
            "varying": flops is not None and "var" in (flops.unknown or ""),
        }
        return tuple(name for name, there in names.items() if there)

    def amounts(self, *, samples: list[int] | None = None, tokens: list[int] | None = None) -> list[Number]:
        """Compare amounts by step, and their sums."""
        numbers = []
        for name, truth in (("samples", samples), ("tokens", tokens)):
            if truth is not None:
                total = (
                    (sum(t[0] for t in truth), sum(t[1] for t in truth)) if isinstance(truth[0], tuple) else sum(truth)
                )
                numbers += [Number(name, getattr(self.summary, name), total)]
                column = self.column(name)
                numbers += (
                    [Number(f"{name} by step", column, truth[: len(column)])] if len(column) == len(truth) else []
                )
        return numbers

    def flops(self, model: Any, hardware: Any = None, dtype: str | None = None) -> list[Number]:
        """Compare the FLOPs of all steps (one truth, or one per step), of the count, and MFU with the given peak."""
        column, marks = self.column("model_flops"), self.marks()
        truth = model if isinstance(model, list) else [model] * len(column)
        numbers = [Number("model FLOPs by step", column, truth[: len(column)], marks, 1e-4)]
        counts, flops = self.of(Flops), self.summary.flops
        if hardware is not None:
            got = counts[0].hardware_flops if counts else None
            numbers += [Number("hardware FLOPs", got, hardware, marks, 1e-4)]
        if dtype is not None:
            peak = {"bfloat16": 989.5e12, "float32": 67e12, "float4": 9000e12, "float8": 1979e12}[dtype]
            known = flops is not None and flops.mfu is not None
            ends = truth[1] if isinstance(truth[1], tuple) else (truth[1], truth[1])
            expected = tuple(end * flops.steps / flops.seconds / peak if known else 0.0 for end in ends)
            numbers += [Number("MFU", flops.mfu if known else None, expected, marks, 1e-4)]
        return numbers

    def memory(self, **parts: float) -> list[Number]:
        """Compare parts of the memory, whose truth is in bytes."""
        record = next(iter(self.of(Memory)), None)
        got = {name: getattr(record, f"{name}_gb", None) for name in parts}
        return [Number(name, got[name] and round(got[name] * 1e9), truth, (), 0.02) for name, truth in parts.items()]


def case(function: Callable[[], list[Number]]) -> Callable[[], list[Number]]:
    CASES[function.__name__] = function
    return function


# The four doors ------------------------------------------------------------------------------------------------------


def settings(directory: str, peaks: str | None = None) -> PerfConfig:
    return PerfConfig(output_dir=directory, peak_tflops=peaks or PEAKS, measure_peak="off")


def reported(summary: Summary | None, directory: str) -> Reported:
    assert summary is not None
    return Reported(summary, [entry.record for entry in read(directory)])


def loop(model, optimizer, batches, step: Callable[[Any], Any], *, peaks: str | None = None) -> Reported:
    """Train in a plain loop; `step` gets a batch and does everything else."""
    with tempfile.TemporaryDirectory() as directory:
        config = settings(directory, peaks)
        with measure(model=model, optimizer=optimizer, loader=batches, config=config) as perf:
            for number, batch in enumerate(perf.loader, 1):
                step(batch)
                if number % 4 == 0:
                    perf.row()
        return reported(perf.summary, directory)


def plain(model, batches, loss: Callable[[Any], torch.Tensor], optimizer=None, **options) -> Reported:
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step(batch: Any) -> None:
        loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return loop(model, optimizer, batches, step, **options)


def hf(model, dataset, *, kind=None, collate=None, callbacks=(), resume=None, directory=None, **arguments) -> Reported:
    from transformers import Trainer, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    with contextlib.ExitStack() as stack:
        directory = directory or stack.enter_context(tempfile.TemporaryDirectory())
        fixed = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": 4, "save_strategy": "no"}
        fixed |= {"per_device_train_batch_size": 4, "max_steps": STEPS, "remove_unused_columns": False}
        evaluation = {"eval_dataset": dataset} if "eval_steps" in arguments else {}
        callback = PerfCallback(settings(directory))
        trainer = (kind or Trainer)(
            model=model,
            args=TrainingArguments(directory, **(fixed | arguments)),
            train_dataset=dataset,
            callbacks=[callback, *callbacks],
            **({"data_collator": collate} if collate else {}),
            **evaluation,
        )
        trainer.train(resume_from_checkpoint=resume)
        return reported(callback.summary, directory)


def accelerate(model, loader, loss, *, optimizer=None, epochs=1, **options) -> Reported:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from perf_callbacks.accelerate import attach

    AcceleratorState._reset_state(reset_partial_state=True)
    with tempfile.TemporaryDirectory() as directory:
        accelerator = Accelerator(cpu=True, **options)
        attachment = attach(accelerator, settings(directory))
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        count = 0
        for _ in range(epochs):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss(model, batch))
                    optimizer.step()
                    optimizer.zero_grad()
                count += 1
                if count % 4 == 0:
                    accelerator.log({"count": count}, step=count)
        accelerator.end_training()
        result = reported(attachment.summary, directory)
    AcceleratorState._reset_state(reset_partial_state=True)
    return result


def lightning(module, loader, *, callbacks=(), validation=None, **options) -> Reported:
    from lightning.pytorch import Trainer

    from perf_callbacks.lightning import PerfCallback

    with tempfile.TemporaryDirectory() as directory:
        callback = PerfCallback(settings(directory))
        fixed = {"max_epochs": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        fixed |= {
            "accelerator": "cpu",
            "enable_checkpointing": False,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 4,
        }
        trainer = Trainer(callbacks=[callback, *callbacks], default_root_dir=directory, **(fixed | options))
        loader, validation = (Batches(data) if isinstance(data, list) else data for data in (loader, validation))
        trainer.fit(module, loader, validation)
        return reported(callback.summary, directory)


def module_of(net: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor]):
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch, index):
            return loss(self.net, batch)

        def validation_step(self, batch, index):
            time.sleep(0.02)
            loss(self.net, batch)

        def configure_optimizers(self):
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=1e-3)

    return Module()


# Parts of models and data ---------------------------------------------------------------------------------------------


class Batches:
    """Batches as they come; a list would be several loaders to Lightning."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Rows(Dataset):
    def __init__(self, make: Callable[[int], Any], count: int = 4 * STEPS) -> None:
        self.rows = [make(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return self.rows[number]


def mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def mlp_flops(rows: int, *sizes: int) -> int:
    """Forward, gradients of weights, and gradients of inputs but for the first layer."""
    units = [2 * rows * i * o for i, o in pairwise(sizes)]
    return 3 * sum(units) - units[0]


def square(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    return lambda batch: model(batch[0] if isinstance(batch, tuple | list) else batch).square().mean()


class Decoder(nn.Module):
    """A small causal decoder in the form that the Trainer of transformers wants."""

    def __init__(self, vocabulary: int = 64, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.width = width
        self.table = nn.Embedding(vocabulary, width)
        parts = (("qkv", 3 * width), ("out", width), ("up", 4 * width))
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {name: nn.Linear(width, size) for name, size in parts} | {"down": nn.Linear(4 * width, width)}
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def attend(self, q, k, v, **rest):
        return functional.scaled_dot_product_attention(*(t.unsqueeze(1) for t in (q, k, v)), is_causal=True).squeeze(1)

    def forward(self, input_ids, labels=None, **rest):
        x = self.table(input_ids)
        for layer in self.layers:
            x = x + layer["out"](self.attend(*layer["qkv"](x).chunk(3, -1), **rest))
            x = x + layer["down"](layer["up"](x).relu())
        logits = self.head(x)
        if labels is None:
            return logits
        return {"loss": functional.cross_entropy(logits.flatten(0, -2), labels.flatten()), "logits": logits}

    def flops(self, rows: int, length: int, pairs: int | None = None) -> int:
        """`pairs` of queries and keys, if they are not all of each row."""
        width, layers = self.width, len(self.layers)
        products = 2 * rows * length * (layers * 12 * width**2 + width * self.head.out_features)
        return 3 * (products + layers * 4 * (rows * length**2 if pairs is None else pairs) * width)


def ids(*shape: int, vocabulary: int = 64) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape)


# Samples and tokens ---------------------------------------------------------------------------------------------------


@case
def packed_lstm():
    lengths = [[random.randint(1, 4 * n % 17 + 3) for _ in range(5)] for n in range(STEPS)]
    batches = [
        (nn.utils.rnn.pack_sequence([torch.randn(n, 8) for n in ns], enforce_sorted=False), torch.randn(5, 3))
        for ns in lengths
    ]
    net = nn.ModuleDict({"lstm": nn.LSTM(8, 16), "head": nn.Linear(16, 3)})

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, packed):
            return net["head"](net["lstm"](packed)[1][0][-1])

    model = Net()
    run = plain(model, batches, lambda batch: (model(batch[0]) - batch[1]).square().mean())
    head = 3 * 2 * 5 * 16 * 3
    total = [sum(ns) for ns in lengths]
    ends = [(2 * 64 * (2 * t * 24 + (t - 5) * 16) + head, 2 * 64 * (2 * t * 24 + t * 16) + head) for t in total]
    return run.amounts(samples=[5] * STEPS) + run.flops(ends)


@case
def image_constants_in_dict():
    loader = [
        {"x": torch.randn(6, 3, 8, 8), "mean": torch.zeros(3), "std": torch.ones(3), "palette": torch.ones(5, 3)}
        for _ in range(STEPS)
    ]
    net = mlp(192, 4)
    module = module_of(net, lambda net, b: net((b["x"] - b["mean"].view(3, 1, 1)).flatten(1)).square().mean())
    run = lightning(module, loader)
    return run.amounts(samples=[6] * STEPS) + run.flops(mlp_flops(6, 192, 4))


@case
def diffusion_schedules_in_tuple():
    schedule = [torch.linspace(0.1, 1, 100) for _ in range(3)]
    net = mlp(16, 32, 16)
    batches = [(torch.randn(8, 16), ids(8, vocabulary=100), *schedule) for _ in range(STEPS)]
    return plain(net, batches, lambda b: net(b[0] * b[2][b[1], None]).square().mean()).amounts(samples=[8] * STEPS)


@case
def time_major_features():
    net = nn.GRU(8, 16)
    batches = [(torch.randn(12, 4, 8), torch.randn(12, 4, 16)) for _ in range(STEPS)]
    run = plain(net, batches, lambda batch: (net(batch[0])[0] - batch[1]).square().mean())
    return run.amounts(samples=[4] * STEPS)


@case
def time_major_ids():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32)

        def forward(self, input_ids, labels):
            logits = self.head(self.layer(self.table(input_ids)))
            return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}

    rows = Rows(lambda n: {"input_ids": ids(10), "labels": ids(10)})
    collate = lambda rs: {k: torch.stack([r[k] for r in rs], 1) for k in rs[0]}  # noqa: E731
    return hf(Net(), rows, collate=collate).amounts(samples=[4] * STEPS, tokens=[40] * STEPS)


@case
def nested_dict_of_modalities():
    def row(n):
        kept = torch.arange(12) < 5 + n % 8
        return {"text": {"input_ids": ids(12), "attention_mask": kept.long()}, "image": {"pixels": torch.randn(3, 4)}}

    rows = Rows(row, 5 * STEPS)
    net = Decoder()
    run = accelerate(
        net, DataLoader(rows, 5), lambda m, b: m(b["text"]["input_ids"]).mean() + b["image"]["pixels"].sum()
    )
    included = [e is None for e in run.column("excluded")]
    useful = [sum(5 + n % 8 for n in range(5 * s, 5 * s + 5)) for s in range(STEPS)]
    useful = sum(count for count, kept in zip(useful, included, strict=True) if kept)
    more = [Number("useful tokens", run.summary.included_useful_tokens, useful)]
    return run.amounts(samples=[5] * STEPS, tokens=[60] * STEPS) + more


@case
def jagged_nested_tensors():
    net = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 3))
    lengths = [[3 + n % 4, 5, 2 + n % 3] for n in range(STEPS)]
    batches = [
        {"input_ids": torch.nested.nested_tensor([ids(n) for n in ns], layout=torch.jagged), "y": torch.zeros(3)}
        for ns in lengths
    ]
    run = plain(net, batches, lambda batch: net(batch["input_ids"]).values().square().mean())
    totals = [sum(ns) for ns in lengths]
    return run.amounts(samples=[3] * STEPS, tokens=totals) + run.flops([6 * t * 24 for t in totals])


@case
def padded_lengths_and_short_last_batch():
    def collate(rows):
        longest = max(len(row) for row in rows)
        padded = torch.stack([functional.pad(row, (0, longest - len(row))) for row in rows])
        mask = torch.stack([(torch.arange(longest) < len(row)).long() for row in rows])
        seen.append((len(rows), longest, int(mask.sum())))
        return {"input_ids": padded, "attention_mask": mask, "labels": padded}

    seen: list[tuple[int, int, int]] = []
    net = Decoder()
    run = hf(net, Rows(lambda n: ids(4 + 7 * n % 23), 30), collate=collate, max_steps=-1, num_train_epochs=5)
    kept = [m for m, e in zip(seen, run.column("excluded"), strict=True) if e is None]
    numbers = run.amounts(samples=[b for b, _, _ in seen], tokens=[b * s for b, s, _ in seen])
    numbers += [Number("useful tokens", run.summary.included_useful_tokens, sum(useful for _, _, useful in kept))]
    return numbers + run.flops([net.flops(b, s) for b, s, _ in seen])


@case
def accumulation_with_short_last_micro_batch():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 16, 4)

        def forward(self, x, labels):
            return {"loss": (self.net(x) - labels).square().mean()}

    rows = Rows(lambda n: {"x": torch.randn(8), "labels": torch.randn(4)}, 22)
    run = hf(Net(), rows, gradient_accumulation_steps=4, max_steps=-1, num_train_epochs=7)
    truth = [16, 6] * 7
    numbers = [Number("steps", run.summary.steps, 14), *run.amounts(samples=truth)]
    return numbers + run.flops([mlp_flops(count, 8, 16, 4) for count in truth])


@case
def batches_that_a_trainer_skips():
    from transformers import Trainer

    class Skipping(Trainer):
        calls = 0

        def training_step(self, model, inputs, *rest):
            self.calls += 1
            if self.calls % 3 == 0:
                with torch.no_grad():
                    return model(**inputs)["loss"]
            return super().training_step(model, inputs, *rest)

    rows = Rows(lambda n: {"input_ids": ids(6), "labels": ids(6)}, 8 * STEPS)
    run = hf(Decoder(), rows, kind=Skipping, gradient_accumulation_steps=2)
    calls = [4 * sum(call % 3 != 0 for call in (2 * s - 1, 2 * s)) for s in range(1, STEPS + 1)]
    return run.amounts(samples=calls, tokens=[6 * count for count in calls])


@case
def batches_that_a_loop_skips():
    net = mlp(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = [torch.randn(3 + n % 4, 8) for n in range(20)]

    def step(batch):
        if len(batch) == 5:
            return
        loss = net(batch).square().mean()
        if len(batch) == 6:  # forward alone
            return
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    truth = [len(batch) for batch in batches if len(batch) < 5]
    run = loop(net, optimizer, batches, step)
    return [Number("steps", run.summary.steps, len(truth)), *run.amounts(samples=truth)]


@case
def list_of_dicts_of_detection():
    net = nn.Conv2d(3, 4, 3)
    batches = [
        [{"image": torch.randn(3, 8, 8), "boxes": torch.randn(1 + (n + k) % 4, 4)} for k in range(3)]
        for n in range(STEPS)
    ]
    run = plain(net, batches, lambda batch: net(torch.stack([row["image"] for row in batch])).mean())
    return run.amounts(samples=[3] * STEPS) + run.flops(2 * 2 * 3 * 4 * 36 * 27)


@case
def detection_targets_as_tuples():
    rows = Rows(lambda n: (torch.randn(3, 8, 8), {"boxes": torch.randn(2 + n % 3, 4), "labels": ids(2 + n % 3)}))
    loader = DataLoader(rows, 4, collate_fn=lambda rows: tuple(zip(*rows, strict=True)))
    net = nn.Conv2d(3, 4, 3)
    return lightning(module_of(net, lambda m, b: m(torch.stack(b[0])).mean()), loader).amounts(samples=[4] * STEPS)


@case
def dict_of_loaders():
    from lightning.pytorch.utilities import CombinedLoader

    pairs = DataLoader(Rows(lambda n: (torch.randn(8), torch.randn(4)), 8 * STEPS), 8)
    lone = DataLoader(Rows(lambda n: torch.randn(8), 24 * STEPS), 24)
    net = mlp(8, 4)

    def loss(net, batch):
        return (net(batch["labeled"][0]) - batch["labeled"][1]).square().mean() + net(
            batch["unlabeled"]
        ).square().mean()

    run = lightning(module_of(net, loss), CombinedLoader({"labeled": pairs, "unlabeled": lone}))
    return run.amounts(samples=[32] * STEPS) + run.flops(mlp_flops(32, 8, 4))


@case
def single_rows():
    net = mlp(16, 4)
    loader = DataLoader(Rows(lambda n: {"x": torch.randn(16), "y": torch.randn(4)}, STEPS), batch_size=None)
    run = plain(net, loader, lambda row: (net(row["x"]) - row["y"]).square().mean())
    return run.amounts(samples=[1] * STEPS)


@case
def graphs_with_pointers():
    class Graphs(SimpleNamespace):
        pass

    def batch(n):
        sizes = [3 + (n + k) % 4 for k in range(4)]
        nodes = sum(sizes)
        places = ids(2, 2 * nodes, vocabulary=nodes).unique(dim=1)
        return Graphs(
            x=torch.randn(nodes, 8),
            edge_index=places,
            batch=torch.arange(4).repeat_interleave(torch.tensor(sizes)),
            ptr=torch.tensor([0, *sizes]).cumsum(0),
            y=torch.randn(4, 3),
        )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, data):
            nodes = len(data.x)
            matrix = torch.sparse_coo_tensor(data.edge_index, torch.ones(data.edge_index.shape[1]), (nodes, nodes))
            x = torch.sparse.mm(matrix, self.one(data.x).relu())
            return torch.zeros(4, 3).index_add(0, data.batch, self.two(x))

    net, batches = Net(), [batch(n) for n in range(STEPS)]
    run = plain(net, batches, lambda data: (net(data) - data.y).square().mean())
    truth = []
    for data in batches:
        nodes, edges = len(data.x), data.edge_index.shape[1]
        truth += [2 * 2 * nodes * 128 + 2 * 2 * edges * 16 + 3 * 2 * nodes * 48]
    return run.amounts(samples=[4] * STEPS) + run.flops(truth)


@case
def graphs_without_pointers():
    index = torch.arange(3).repeat_interleave(6)
    batches = [{"x": torch.randn(18, 8), "edge_index": ids(2, 40, vocabulary=18), "batch": index} for _ in range(STEPS)]
    net = mlp(8, 4)
    return plain(net, batches, lambda b: net(b["x"])[b["edge_index"][0]].square().mean()).amounts(samples=[3] * STEPS)


@case
def masks_of_four_dimensions():
    class Masked(Decoder):
        def attend(self, q, k, v, attention_mask, **rest):
            q, k, v = (t.unsqueeze(1) for t in (q, k, v))
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask).squeeze(1)

    mask = torch.ones(1, 9, 9).tril().bool()
    rows = Rows(lambda n: {"input_ids": ids(9), "labels": ids(9), "attention_mask": mask})
    net = Masked()
    run = hf(net, rows)
    useful = Number("useful tokens", run.summary.included_useful_tokens, 36 * run.summary.included_steps)
    return [*run.amounts(samples=[4] * STEPS, tokens=[36] * STEPS), useful, *run.flops(net.flops(4, 9))]


@case
def preference_pairs():
    def row(n):
        return {
            "chosen_input_ids": ids(7),
            "rejected_input_ids": ids(11),
            "chosen_attention_mask": torch.ones(7).long(),
        }

    net = Decoder()

    def loss(model, batch):
        return -functional.logsigmoid(
            model(batch["chosen_input_ids"]).mean() - model(batch["rejected_input_ids"]).mean()
        )

    run = accelerate(net, DataLoader(Rows(row), 4), loss)
    truth = net.flops(4, 7) + net.flops(4, 11)
    return run.amounts(samples=[(4, 8)] * STEPS, tokens=[72] * STEPS) + run.flops(truth)


@case
def class_weights_in_the_batch():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(16, 10)

        def forward(self, x, labels, class_weights, prior):
            return {"loss": functional.cross_entropy(self.net(x) + prior, labels, weight=class_weights)}

    def collate(rows):
        joined = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
        return joined | {"class_weights": torch.ones(10), "prior": torch.zeros(10)}

    run = hf(Net(), Rows(lambda n: {"x": torch.randn(16), "labels": ids(1, vocabulary=10)[0]}), collate=collate)
    return run.amounts(samples=[4] * STEPS)


@case
def weights_of_features():
    net, weights = mlp(16, 4, 16), torch.rand(16)
    batches = [(torch.randn(8, 16), weights) for _ in range(STEPS)]
    return plain(net, batches, lambda b: ((net(b[0]) - b[0]) * b[1]).square().mean()).amounts(samples=[8] * STEPS)


@case
def bags_with_offsets():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(64, 8), nn.Linear(8, 2)

        def forward(self, words, offsets):
            return self.head(self.bag(words, offsets))

    net = Net()
    batches = [(ids(30 + n), torch.tensor([0, 4, 9, 15, 22]), ids(5, vocabulary=2)) for n in range(STEPS)]
    run = plain(net, batches, lambda batch: functional.cross_entropy(net(*batch[:2]), batch[2]))
    return run.amounts(samples=[5] * STEPS, tokens=[30 + n for n in range(STEPS)]) + run.flops(3 * 2 * 5 * 16)


@case
def crops_of_several_sizes():
    net = nn.Conv2d(3, 4, 3)
    batches = [[torch.randn(5, 3, s, s) for s in (16, 16, 8, 8, 8, 8, 8, 8)] for _ in range(STEPS)]
    run = plain(net, batches, lambda batch: sum(net(crop).mean() for crop in batch))
    return run.amounts(samples=[5] * STEPS) + run.flops(2 * 2 * 5 * 4 * 27 * (2 * 14**2 + 6 * 6**2))


class Packed(Decoder):
    """Attends within the sequences that `cu_seqlens` ends."""

    def attend(self, q, k, v, cu_seqlens, **rest):
        ends = cu_seqlens.flatten().tolist()
        parts = [super(Packed, self).attend(*(t[:, a:b] for t in (q, k, v))) for a, b in pairwise(ends)]
        return torch.cat(parts, 1)


@case
def rows_of_packed_sequences():
    lengths = [
        random.sample(([8] * 5, [2, 3, 4, 5, 26], [1, 1, 1, 1, 36], [10, 10, 10, 5, 5]), 1)[0] for _ in range(40)
    ]
    rows = Rows(lambda n: {"input_ids": ids(1, 40), "labels": ids(1, 40)}, 40)
    order = iter(lengths)

    def collate(chosen):
        return chosen[0] | {"cu_seqlens": torch.tensor([0, *next(order)]).cumsum(0).int()}

    net = Packed()
    run = hf(net, rows, collate=collate, per_device_train_batch_size=1, max_steps=40)
    truth = [net.flops(1, 40, sum(n * n for n in ns)) for ns in lengths]
    return run.amounts(samples=[5] * 40, tokens=[40] * 40) + run.flops(truth)


@case
def batches_used_for_several_steps():
    net = mlp(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(batch):
        for _ in range(3):
            net(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    run = loop(net, optimizer, [torch.randn(4 + n % 3, 8) for n in range(6)], step)
    return [
        Number("steps", run.summary.steps, 18),
        *run.amounts(samples=[c for n in range(6) for c in (4 + n % 3, 0, 0)]),
    ]


@case
def batches_fetched_ahead():
    net = mlp(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    waiting: list[torch.Tensor] = []

    def step(batch):
        waiting.append(batch)
        if len(waiting) > 2:
            net(waiting.pop(0)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    sizes = [3 + n % 5 for n in range(STEPS + 2)]
    run = loop(net, optimizer, [torch.randn(size, 8) for size in sizes], step)
    return run.amounts(samples=sizes[:STEPS]) + run.flops([mlp_flops(size, 8, 4) for size in sizes])


@case
def batches_of_a_token_budget():
    from transformers import Trainer

    class Budget(Trainer):
        def get_train_dataloader(self):
            groups = [list(range(a, a + 2 + a % 5)) for a in range(STEPS)]
            return self.accelerator.prepare(DataLoader(self.train_dataset, batch_sampler=groups))

    rows = Rows(lambda n: {"input_ids": ids(6), "labels": ids(6)})
    sizes, net = [2 + a % 5 for a in range(STEPS)], Decoder()
    run = hf(net, rows, kind=Budget)
    return run.amounts(samples=sizes, tokens=[6 * s for s in sizes]) + run.flops([net.flops(s, 6) for s in sizes])


@case
def amounts_told_by_the_loop():
    net = mlp(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as directory:
        with measure(model=net, optimizer=optimizer, config=settings(directory)) as perf:
            for number in range(STEPS):
                for micro in range(1 + number % 2):
                    perf.batch(samples=5 + micro, tokens=50)
                    net(torch.randn(5 + micro, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        run = reported(perf.summary, directory)
    rows = [5 + 6 * (number % 2) for number in range(STEPS)]
    more = run.amounts(samples=rows, tokens=[50 * (1 + number % 2) for number in range(STEPS)])
    return more + run.flops([mlp_flops(count, 8, 4) for count in rows])


@case
def named_tuples_of_columns():
    Batch = namedtuple("Batch", "age category numbers price")  # noqa: PYI024
    batches = [Batch(torch.rand(9), ids(9, 3), torch.randn(9, 7), torch.rand(9)) for _ in range(STEPS)]
    net = mlp(7, 1)
    module = module_of(net, lambda net, b: (net(b.numbers).squeeze(1) + b.age - b.price).square().mean())
    return lightning(module, batches).amounts(samples=[9] * STEPS)


@case
def accumulation_that_a_loader_ends():
    rows = Rows(lambda n: torch.randn(8), 18)
    run = accelerate(mlp(8, 4), DataLoader(rows, 4), lambda m, b: m(b).mean(), epochs=7, gradient_accumulation_steps=3)
    truth = [12, 6] * 7
    numbers = [Number("steps", run.summary.steps, 14), *run.amounts(samples=truth)]
    return numbers + run.flops([mlp_flops(count, 8, 4) for count in truth])


@case
def parameters_drawn_for_each_batch():
    def batch(n):
        return {"x": torch.randn(8, 16), "sigmas": torch.rand(5), "gains": torch.rand(5), "shifts": torch.rand(5)}

    net = mlp(16, 4)
    run = plain(net, [batch(n) for n in range(STEPS)], lambda b: (net(b["x"]) * b["gains"].sum()).square().mean())
    return run.amounts(samples=[8] * STEPS)


@case
def whole_dataset_in_each_batch():
    net, loader = mlp(8, 4), DataLoader(Rows(lambda n: (torch.randn(8), torch.randn(4)), 12), 12)
    run = accelerate(net, loader, lambda m, b: (m(b[0]) - b[1]).square().mean(), epochs=STEPS)
    return run.amounts(samples=[12] * STEPS) + run.flops(mlp_flops(12, 8, 4))


@case
def positions_of_three_axes():
    def collate(rows):
        tokens = torch.stack(rows)
        axes = torch.arange(9).expand(3, len(rows), 9).clone()
        return {
            "input_ids": tokens,
            "labels": tokens,
            "position_ids": axes,
            "cos": torch.ones(9, 8),
            "sin": torch.ones(9, 8),
        }

    net = Decoder()
    run = hf(net, Rows(lambda n: ids(9)), collate=collate)
    return run.amounts(samples=[4] * STEPS, tokens=[36] * STEPS) + run.flops(net.flops(4, 9))


@case
def time_major_ids_with_lengths():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.lstm, self.head = nn.Embedding(64, 8), nn.LSTM(8, 16), nn.Linear(16, 3)

        def forward(self, input_ids, lengths):
            return self.head(self.lstm(self.table(input_ids))[0][lengths - 1, torch.arange(len(lengths))])

    net = Net()
    batches = [{"input_ids": ids(11, 4), "lengths": torch.tensor([11, 7, 5, 3])} for _ in range(STEPS)]
    return plain(net, batches, lambda b: net(**b).square().mean()).amounts(samples=[4] * STEPS, tokens=[44] * STEPS)


@case
def packed_sequences_in_a_dict():
    lengths = [[3 + n % 5, 2, 1 + n % 3] for n in range(STEPS)]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(8, 16), nn.Linear(16, 3)

        def forward(self, sequences, labels):
            x = self.head(self.gru(sequences)[1][-1])
            return {"loss": functional.cross_entropy(x, labels)}

    def collate(rows):
        packed = nn.utils.rnn.pack_sequence([torch.randn(n, 8) for n in rows[0]], enforce_sorted=False)
        return {"sequences": packed, "labels": ids(3, vocabulary=3)}

    run = accelerate(Net(), DataLoader(lengths, 1, collate_fn=collate), lambda m, b: m(**b)["loss"])
    head, total = 3 * 2 * 3 * 48, [sum(ns) for ns in lengths]
    ends = [(2 * 48 * (2 * t * 24 + (t - 3) * 16) + head, 2 * 48 * (2 * t * 24 + t * 16) + head) for t in total]
    return run.amounts(samples=[3] * STEPS) + run.flops(ends)


@case
def square_batches_of_one_tensor():
    net = mlp(8, 4)
    return plain(net, [torch.randn(8, 8) for _ in range(STEPS)], square(net)).amounts(samples=[8] * STEPS)


@case
def rows_of_a_pool():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(16, 4)

        def forward(self, anchor, negatives):
            return self.net(anchor) @ self.net(negatives).t()

    net = Net()
    batches = [{"anchor": torch.randn(6, 16), "negatives": torch.randn(40, 16), "hard": ids(40)} for _ in range(STEPS)]
    run = plain(net, batches, lambda b: net(b["anchor"], b["negatives"]).square().mean())
    return run.amounts(samples=[6] * STEPS) + run.flops(mlp_flops(46, 16, 4) + 3 * 2 * 6 * 40 * 4)


@case
def accumulation_in_lightning():
    loader = DataLoader(Rows(lambda n: torch.randn(8), 22), 4)
    module = module_of(mlp(8, 16, 4), lambda m, b: m(b).square().mean())
    run = lightning(module, loader, max_epochs=7, accumulate_grad_batches=4)
    numbers = [Number("steps", run.summary.steps, 14), *run.amounts(samples=[16, 6] * 7)]
    return numbers + run.flops([mlp_flops(count, 8, 16, 4) for count in [16, 6] * 7])


@case
def batches_that_lightning_skips():
    net = mlp(8, 4)
    module = module_of(net, lambda m, b: None if len(b) == 5 else m(b).square().mean())
    batches = [torch.randn(3 + n % 4, 8) for n in range(20)]
    run = lightning(module, batches)
    return run.amounts(samples=[len(b) for b in batches if len(b) != 5])[:1]


@case
def lengths_of_encoder_and_decoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.encode, self.cross, self.head = (
                nn.Embedding(64, 16),
                Decoder(),
                nn.Linear(64, 48),
                nn.Linear(16, 64),
            )

        def forward(self, input_ids, decoder_input_ids, labels, **rest):
            k, v, _ = self.cross(self.encode(input_ids)).chunk(3, -1)
            q = self.table(decoder_input_ids)
            x = functional.scaled_dot_product_attention(*(t.unsqueeze(1) for t in (q, k, v))).squeeze(1)
            return {"loss": functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())}

    def collate(rows):
        s, t = 5 + len(seen) * 5 % 7, 4 + len(seen) * 3 % 5
        seen.append((s, t))
        return {"input_ids": ids(4, s), "decoder_input_ids": ids(4, t), "labels": ids(4, t)}

    seen: list[tuple[int, int]] = []
    net = Net()
    run = hf(net, Rows(lambda n: n, 200), collate=collate, max_steps=40)
    cut = seen[: run.summary.steps]
    truth = [net.encode.flops(4, s) + 3 * 2 * 4 * (s * 64 * 48 + t * 16 * 64) + 12 * 4 * s * t * 16 for s, t in cut]
    return run.amounts(samples=[4] * 40, tokens=[4 * s for s, _ in cut]) + run.flops(truth)


@case
def head_of_labelled_tokens():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.body, self.head = nn.Embedding(64, 16), nn.Linear(16, 16), nn.Linear(16, 64)

        def forward(self, input_ids, labels, **rest):
            kept = labels >= 0
            counts.append(int(kept.sum()))
            return {"loss": functional.cross_entropy(self.head(self.body(self.table(input_ids))[kept]), labels[kept])}

    counts: list[int] = []
    rows = Rows(lambda n: {"input_ids": ids(10), "labels": ids(10).where(torch.rand(10) < n % 9 / 9 + 0.1, -100)}, 160)
    run = hf(Net(), rows, max_steps=40)
    return run.amounts(samples=[4] * 40, tokens=[40] * 40) + run.flops([6 * (40 * 256 + c * 1024) for c in counts])


@case
def preference_pairs_of_trl():
    from datasets import Dataset as Table
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    from perf_callbacks.transformers import PerfCallback

    words = {f"w{n}": n + 3 for n in range(60)} | {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    base = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    text = lambda n: " ".join(f"w{random.randrange(60)}" for _ in range(n))  # noqa: E731
    rows = [{"prompt": text(4), "chosen": " " + text(5), "rejected": " " + text(3 + n % 6)} for n in range(40)]
    seen: list[int] = []
    shape = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }

    class Watched(DPOTrainer):
        def training_step(self, model, inputs, *rest):
            seen.append(inputs["input_ids"].numel())
            assert inputs["input_ids"].shape[0] == 8
            return super().training_step(model, inputs, *rest)

    with tempfile.TemporaryDirectory() as directory:
        callback = PerfCallback(settings(directory))
        fixed = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": 4, "save_strategy": "no"}
        fixed |= {"max_steps": 8, "per_device_train_batch_size": 4, "bf16": False, "gradient_checkpointing": False}
        Watched(
            model=LlamaForCausalLM(LlamaConfig(**shape)),
            ref_model=LlamaForCausalLM(LlamaConfig(**shape)),
            args=DPOConfig(output_dir=directory, **fixed),
            train_dataset=Table.from_list(rows),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=base, **names),
            callbacks=[callback],
        ).train()
        run = reported(callback.summary, directory)
    return run.amounts(samples=[8] * 8, tokens=seen)


@case
def rows_as_the_model_is_called():
    """What the model gets has other sizes than the batch: flattened, joined, cut, transposed, or row by row."""
    calls = {
        "frames flattened": ((4, 6, 8), lambda net, x: net(x.flatten(0, 1))),
        "two views joined": ((5, 8), lambda net, x: net(torch.cat([x, x + 0.1]))),
        "half of the rows": ((8, 8), lambda net, x: net(x[:4])),
        "time first": ((4, 6, 8), lambda net, x: net(x.transpose(0, 1))),
        "row by row": ((4, 8), lambda net, x: torch.stack([net(row) for row in x])),
    }
    numbers = []
    for name, (shape, call) in calls.items():
        net = mlp(8, 4)
        batches = [(torch.randn(shape), torch.randn(shape[0])) for _ in range(8)]
        run = plain(net, batches, lambda b, call=call, net=net: call(net, b[0]).square().mean() + b[1].sum())
        numbers += [Number(name, run.summary.samples, 8 * shape[0])]
    return numbers


@case
def one_batch_again_and_again():
    net, batch = mlp(8, 4), (torch.randn(8, 8), torch.randn(8, 4))
    run = plain(net, [batch] * STEPS, lambda b: (net(b[0]) - b[1]).square().mean())
    return run.amounts(samples=[8] * STEPS) + run.flops(mlp_flops(8, 8, 4))


@case
def points_of_an_equation():
    net = mlp(2, 16, 1)
    batches = [(torch.rand(100, 2), torch.rand(40, 2), torch.rand(40, 2)) for _ in range(STEPS)]
    run = plain(net, batches, lambda b: sum(net(points).square().mean() for points in b))
    return run.amounts(samples=[180] * STEPS) + run.flops(mlp_flops(180, 2, 16, 1))


@case
def choices_of_an_answer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Decoder()

        def forward(self, input_ids, labels, **rest):
            scores = self.net(input_ids.flatten(0, 1)).mean((1, 2)).view(input_ids.shape[:2])
            return {"loss": functional.cross_entropy(scores, labels)}

    rows = Rows(lambda n: {"input_ids": ids(5, 7), "labels": ids(1, vocabulary=5)[0]})
    net = Net()
    run = hf(net, rows)
    return run.amounts(samples=[4] * STEPS, tokens=[140] * STEPS) + run.flops(net.net.flops(20, 7))


@case
def tokens_without_padding_in_one_dimension():
    net = Decoder()

    def collate(rows):
        joined = torch.cat(rows)
        places = torch.cat([torch.arange(len(row)) for row in rows])
        return {"input_ids": joined, "labels": joined, "position_ids": places}

    lengths = [5 + n % 4 for n in range(4 * STEPS)]
    loader = DataLoader([ids(n) for n in lengths], 4, collate_fn=collate)
    run = accelerate(net, loader, lambda m, b: m(b["input_ids"][None], b["labels"][None])["loss"])
    return run.amounts(samples=[4] * STEPS, tokens=[sum(lengths[n : n + 4]) for n in range(0, 4 * STEPS, 4)])


# FLOPs ----------------------------------------------------------------------------------------------------------------


@case
def linear_layers():
    net = mlp(16, 32, 8)
    run = plain(net, [torch.randn(8, 16) for _ in range(STEPS)], square(net))
    return run.flops(truth := mlp_flops(8, 16, 32, 8), truth, "float32")


@case
def convolutions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.grouped = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4)
            self.transposed = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1, groups=2)
            self.deep = nn.Conv1d(8, 8, 5, padding=4, dilation=2, groups=8)
            self.solid = nn.Conv3d(1, 4, 3, padding=1)

        def forward(self, x):
            x = self.deep(self.transposed(self.grouped(x)).flatten(2))
            return self.solid(x.view(-1, 1, 8, 12, 12))

    rows = 3
    grouped, transposed = 2 * rows * 16 * 36 * 2 * 9, 2 * rows * 16 * 36 * 4 * 16
    deep, solid = 2 * rows * 8 * 144 * 5, 2 * rows * 4 * 8 * 144 * 27
    truth = 2 * grouped + 3 * (transposed + deep + solid)
    loader = DataLoader(Rows(lambda n: torch.randn(8, 12, 12), rows * STEPS), rows)
    return accelerate(Net(), loader, lambda m, b: m(b).square().mean()).flops(truth, truth, "float32")


@case
def grouped_queries():
    b, h, g, s, d, w = 2, 8, 2, 24, 16, 32

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(w, (h + 2 * g) * d), nn.Linear(h * d, w)

        def forward(self, x):
            q, k, v = self.qkv(x).view(b, s, h + 2 * g, d).transpose(1, 2).split([h, g, g], 1)
            x = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return self.out(x.transpose(1, 2).reshape(b, s, h * d))

    net, pairs = Net(), 2 * b * h * s * s * d
    run = plain(net, [torch.randn(b, s, w) for _ in range(STEPS)], square(net))
    truth = 2 * 2 * b * s * w * (h + 2 * g) * d + 3 * 2 * b * s * w * h * d + 6 * pairs
    return run.amounts(samples=[b] * STEPS) + run.flops(truth, (truth, truth + pairs), "float32")


@case
def low_rank_adapters():
    w, r, v = 32, 4, 64

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(v, w), nn.Linear(w, v)
            self.bases = nn.ModuleList(nn.Linear(w, w) for _ in range(2))
            self.requires_grad_(False)
            self.downs = nn.ModuleList(nn.Linear(w, r, bias=False) for _ in range(2))
            self.ups = nn.ModuleList(nn.Linear(r, w, bias=False) for _ in range(2))

        def forward(self, input_ids, labels):
            x = self.table(input_ids)
            for base, down, up in zip(self.bases, self.downs, self.ups, strict=True):
                x = (base(x) + up(down(x))).tanh()
            return {"loss": functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())}

    run = hf(Net(), Rows(lambda n: {"input_ids": ids(10), "labels": ids(10)}))
    unit = 2 * 40 * w
    truth = unit * (w * (1 + 2) + r * (2 + 3 + 3 + 3) + v * 2)
    return run.flops(truth, truth, "float32")


@case
def frozen_backbone():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = mlp(16, 32, 24), mlp(24, 12, 4)

        def forward(self, x):
            with torch.no_grad():
                x = self.backbone(x)
            return self.head(x)

    run = lightning(module_of(Net(), lambda m, b: m(b).square().mean()), [torch.randn(6, 16) for _ in range(STEPS)])
    truth = 2 * 6 * (16 * 32 + 32 * 24) + mlp_flops(6, 24, 12, 4)
    return run.flops(truth, truth, "float32")


@case
def checkpointing_of_both_kinds():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.blocks = nn.Linear(16, 16), nn.ModuleList(mlp(16, 48, 16) for _ in range(4))

        def forward(self, x):
            x = self.first(x)
            with set_checkpoint_early_stop(enable=False):
                for number, block in enumerate(self.blocks):
                    x = x + checkpoint(block, x, use_reentrant=bool(number % 2))
            return x

    net, block = Net(), 2 * 2 * 8 * 16 * 48
    truth = 2 * 2 * 8 * 16 * 16 + 4 * 3 * block
    run = plain(net, [torch.randn(8, 16) for _ in range(STEPS)], square(net))
    return run.flops(truth, truth + 4 * block, "float32")


class Experts(nn.Module):
    def __init__(self, kept: int | None) -> None:
        super().__init__()
        self.kept, self.first, self.router = kept, nn.Linear(16, 16), nn.Linear(16, 4)
        self.experts = nn.ModuleList(mlp(16, 32, 16) for _ in range(4))
        self.rows: list[int] = []

    def forward(self, x):
        x = self.first(x)
        weights = self.router(x).softmax(-1)
        chosen = weights > 0.25 if self.kept is None else weights >= weights.topk(self.kept).values[:, -1:]
        result, rows = torch.zeros_like(x), 0
        for number, expert in enumerate(self.experts):
            places = chosen[:, number].nonzero().squeeze(1)
            rows += len(places)
            result = result.index_add(0, places, expert(x[places]) * weights[places, number, None])
        self.rows.append(rows)
        return result


@case
def experts_with_a_fixed_number():
    net = Experts(2)
    run = plain(net, [torch.randn(24, 16) for _ in range(STEPS)], square(net))
    truth = 2 * 2 * 24 * 256 + 3 * 2 * 24 * 64 + 3 * 2 * 48 * 1024
    return run.flops(truth, truth, "float32")


@case
def experts_above_a_threshold():
    net = Experts(None)
    batches = [torch.randn(24, 16) * (1 if n < 6 else 1e-3 * n) for n in range(40)]
    run = plain(net, batches, square(net))
    return run.flops([2 * 2 * 24 * 256 + 3 * 2 * 24 * 64 + 3 * 2 * rows * 1024 for rows in net.rows])


@case
def tied_embeddings():
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 96, "n_positions": 64}
    rows = Rows(lambda n: dict.fromkeys(("input_ids", "labels"), ids(20)))
    run = hf(GPT2LMHeadModel(GPT2Config(**shape)), rows)
    pairs = 2 * 2 * 4 * 20 * 20 * 32
    truth = 6 * 80 * (2 * 12 * 32 * 32 + 32 * 96) + 6 * pairs
    return run.amounts(samples=[4] * STEPS, tokens=[80] * STEPS) + run.flops(truth, (truth, truth + pairs), "float32")


@case
def recurrent_both_ways():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 16, batch_first=True, bidirectional=True), nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    net, (b, s, i, h) = Net(), (4, 10, 8, 16)
    run = plain(net, [torch.randn(b, s, i) for _ in range(STEPS)], square(net))
    head, gates = 3 * 2 * b * s * 128, 2 * b * 4 * h * 2
    ends = (gates * (2 * s * (i + h) + (s - 1) * h) + head, gates * 3 * s * (i + h) + head)
    return run.amounts(samples=[b] * STEPS) + run.flops(ends, ends)


@case
def mixed_precision():
    loader = DataLoader(Rows(lambda n: torch.randn(32), 8 * STEPS), 8)
    run = accelerate(mlp(32, 64, 16), loader, lambda m, b: m(b).square().mean(), mixed_precision="bf16")
    return run.flops(truth := mlp_flops(8, 32, 64, 16), truth, "bfloat16")


@case
def gradient_penalty():
    net, (b, i, h) = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1)), (8, 12, 32)

    def loss(x):
        x = x.requires_grad_()
        score = net(x)
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        return score.mean() + (slope.norm(dim=1) - 1).square().mean()

    truth = 12 * b * i * h + 10 * b * h
    return plain(net, [torch.randn(b, i) for _ in range(STEPS)], loss).flops(truth, truth, "float32")


def gan_flops(rows: int) -> int:
    one, two, three, four = (2 * rows * n for n in (8 * 16, 16 * 12, 12 * 16, 16))
    return one * 3 + two * 4 + three * 7 + four * 9


def gan_losses(make, judge, real):
    fake = make(torch.randn(len(real), 8))
    yield (judge(fake.detach()) - judge(real)).mean()
    yield -judge(make(torch.randn(len(real), 8))).mean()


@case
def two_models_in_a_loop():
    make, judge = mlp(8, 16, 12), mlp(12, 16, 1)
    first, second = (torch.optim.SGD(net.parameters(), lr=0.01) for net in (judge, make))

    def step(real):
        for loss, optimizer in zip(gan_losses(make, judge, real), (first, second), strict=True):
            loss.backward()
            optimizer.step()
            first.zero_grad()
            second.zero_grad()

    run = loop(make, second, [torch.randn(6, 12) for _ in range(STEPS)], step)
    return [Number("steps", run.summary.steps, STEPS), *run.amounts(samples=[6] * STEPS), *run.flops(gan_flops(6))]


@case
def two_models_by_hand_in_lightning():
    from lightning.pytorch import LightningModule

    class Gan(LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization, self.make, self.judge = False, mlp(8, 16, 12), mlp(12, 16, 1)

        def training_step(self, real, index):
            for loss, optimizer in zip(gan_losses(self.make, self.judge, real), self.optimizers(), strict=True):
                self.manual_backward(loss)
                optimizer.step()
                self.zero_grad()

        def configure_optimizers(self):
            return [torch.optim.SGD(net.parameters(), lr=0.01) for net in (self.judge, self.make)]

    run = lightning(Gan(), [torch.randn(6, 12) for _ in range(STEPS)])
    return [Number("steps", run.summary.steps, STEPS), *run.amounts(samples=[6] * STEPS), *run.flops(gan_flops(6))]


@case
def muon():
    net = nn.Sequential(nn.Linear(16, 48, bias=False), nn.Tanh(), nn.Linear(48, 32, bias=False))
    optimizer = torch.optim.Muon(net.parameters(), lr=1e-3)
    run = plain(net, [torch.randn(8, 16) for _ in range(STEPS)], square(net), optimizer)
    truth = mlp_flops(8, 16, 48, 32)
    extra = sum(5 * (2 * 2 * m * m * n + 2 * m**3) for m, n in ((16, 48), (32, 48)))
    state = sum(p.nbytes for p in net.parameters())
    return run.flops(truth, truth + extra, "float32") + run.memory(optimizer=state, gradients=state, weights=state)


@case
def rows_updated_one_by_one():
    class Slow(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                for number in range(len(p)):
                    p[number].sub_(p.grad[number] / (1 + p.grad[number].norm()), alpha=1e-3)

    net = mlp(32, 600, 8)
    run = plain(net, [torch.randn(8, 32) for _ in range(STEPS)], square(net), Slow(net.parameters(), {}))
    truth = mlp_flops(8, 32, 600, 8)
    return [Number("steps", run.summary.steps, STEPS), *run.flops(truth, truth, "float32")]


@case
def accumulation_of_very_many_operations():
    net = mlp(*[16] * 41)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    kept: list[torch.Tensor] = []

    def step(batch):
        kept.append(batch)
        net(batch).square().mean().backward()
        if len(kept) % 96 == 0:
            optimizer.step()
            optimizer.zero_grad()

    run = loop(net, optimizer, [torch.randn(2, 16) for _ in range(96 * STEPS)], step)
    truth = 96 * mlp_flops(2, *[16] * 41)
    return run.amounts(samples=[192] * STEPS) + run.flops(truth, truth, "float32")


class Eighths(torch.autograd.Function):
    """A linear layer whose products are in float8, but for the gradient of its weight."""

    @staticmethod
    def product(a, b):
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()
        return torch._scaled_mm(a, b, scale_a=torch.ones(()), scale_b=torch.ones(()), out_dtype=torch.bfloat16)

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return Eighths.product(x, weight.t())

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return Eighths.product(gradient, weight) if ctx.needs_input_grad[0] else None, gradient.t() @ x


class Quantized(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(torch.randn(64, 64, dtype=torch.bfloat16) / 8 for _ in range(2))

    def forward(self, x):
        return self.function.apply(self.function.apply(x, self.weights[0]), self.weights[1])


@case
def products_in_eight_bits():
    net, unit = Quantized(Eighths), 2 * 32 * 64 * 64
    batches = [torch.randn(32, 64, dtype=torch.bfloat16) for _ in range(STEPS)]
    run = plain(net, batches, square(net), peaks="bf16=989.5,fp32=67,fp8=1979")
    return run.flops(5 * unit, 5 * unit, "float8")


@case
def products_in_four_bits():
    class Quarters(Eighths):
        @staticmethod
        def product(a, b):
            a, b = (
                torch.zeros(*shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2) for shape in ((32, 32), (64, 32))
            )
            return torch._scaled_mm(a, b.t(), scale_a=torch.ones(()), scale_b=torch.ones(()), out_dtype=torch.bfloat16)

        forward = staticmethod(lambda ctx, x, w: (ctx.save_for_backward(x, w), Quarters.product(x, w))[1])

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            return Quarters.product(gradient, weight) if ctx.needs_input_grad[0] else None, gradient.t() @ x

    net, unit = Quantized(Quarters), 2 * 32 * 64 * 64
    library = torch.library.Library("aten", "IMPL")  # CPUs have no such kernel: zeros stand for its result
    library.impl("_scaled_mm", lambda a, b, *r, **k: torch.zeros(len(a), b.shape[1], dtype=torch.bfloat16), "CPU")
    try:
        run = plain(net, [torch.randn(32, 64, dtype=torch.bfloat16) for _ in range(STEPS)], square(net))
    finally:
        library._destroy()
    return run.flops(5 * unit, 5 * unit, "float4")


@case
def complex_and_integer_products():
    net, table = nn.Linear(12, 16, dtype=torch.complex64, bias=False), torch.randint(0, 9, (8, 8))

    def loss(x):
        return net(x).abs().square().mean() + 0.0 * (table @ table).sum()

    truth = 2 * 8 * 8 * 12 * 16
    return plain(net, [torch.randn(8, 12, dtype=torch.complex64) for _ in range(STEPS)], loss).flops(truth, truth)


@case
def memory_that_grows():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.query, self.kept = nn.Embedding(64, 16), nn.Linear(16, 16), torch.zeros(2, 0, 16)

        def forward(self, tokens):
            x = self.table(tokens)
            keys = torch.cat([self.kept, x], 1).unsqueeze(1)
            self.kept = keys.squeeze(1).detach()[:, -160:]
            return functional.scaled_dot_product_attention(self.query(x).unsqueeze(1), keys, keys)

    net = Net()
    run = plain(net, [ids(2, 8) for _ in range(40)], square(net))
    keys = [min(8 * n, 160) + 8 for n in range(40)]
    truth = [3 * 2 * 16 * 256 + 12 * 2 * 8 * count * 16 for count in keys]
    return run.amounts(samples=[2] * 40, tokens=[16] * 40) + run.flops(truth)


@case
def layers_dropped_at_random():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.kept = nn.ModuleList(nn.Linear(16, 16) for _ in range(6)), []

        def forward(self, x):
            chosen = [layer for n, layer in enumerate(self.layers) if n == 0 or random.random() < 0.7]
            self.kept.append(len(chosen))
            for layer in chosen:
                x = layer(x).tanh()
            return x

    net = Net()
    run = plain(net, [torch.randn(8, 16) for _ in range(40)], square(net))
    return run.flops([mlp_flops(8, *[16] * (count + 1)) for count in net.kept])


@case
def layers_frozen_in_training():
    net = mlp(16, 32, 24, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    steps = iter(range(1, 41))

    def step(batch):
        if next(steps) == 18:
            net[0].requires_grad_(False)
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    run = loop(net, optimizer, [torch.randn(8, 16) for _ in range(40)], step)
    before, after = mlp_flops(8, 16, 32, 24, 8), 2 * 8 * (16 * 32 + 2 * 32 * 24 + 3 * 24 * 8)
    return run.flops([before] * 17 + [after] * 23)


@case
def closures_of_lbfgs():
    net, calls = mlp(8, 6, 1), []
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    teacher = mlp(8, 6, 1)

    def step(batch):
        def closure():
            calls[-1] += 1
            optimizer.zero_grad()
            loss = (net(batch) - target).square().mean()
            loss.backward()
            return loss

        calls.append(0)
        with torch.no_grad():
            target = batch.sum(1, keepdim=True).sin()
        optimizer.step(closure)

    del teacher
    run = loop(net, optimizer, [torch.randn(10, 8) for _ in range(30)], step)
    return run.flops([count * mlp_flops(10, 8, 6, 1) for count in calls])


@case
def gradients_per_sample():
    net = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def one(weights, row):
        return torch.func.functional_call(net, weights, (row.unsqueeze(0),)).square().mean()

    def step(batch):
        weights = {name: p.detach() for name, p in net.named_parameters()}
        slopes = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))(weights, batch)
        for name, p in net.named_parameters():
            p.grad = slopes[name].mean(0)
        optimizer.step()

    run = loop(net, optimizer, [torch.randn(6, 8) for _ in range(STEPS)], step)
    return run.amounts(samples=[6] * STEPS) + run.flops(mlp_flops(6, 8, 16, 4))


@case
def regularizer_in_some_steps():
    net, steps = mlp(16, 64, 8), iter(range(1, 100))

    def loss(x):
        penalty = (net[0].weight.t() @ net[0].weight).square().sum() if next(steps) % 4 == 0 else 0
        return net(x).square().mean() + 1e-4 * penalty

    run = plain(net, [torch.randn(8, 16) for _ in range(40)], loss)
    usual = mlp_flops(8, 16, 64, 8)
    return run.flops([usual + (3 * 2 * 16 * 16 * 64 if s % 4 == 0 else 0) for s in range(1, 41)])


@case
def products_of_many_kinds():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.pair = nn.Linear(8, 12), nn.Bilinear(12, 12, 4, bias=False)
            self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
            self.core, self.last = nn.Parameter(torch.randn(5, 12, 6)), nn.Parameter(torch.randn(6))

        def forward(self, x):
            x = self.first(x)
            mixed = torch.einsum("bsi,sij->bsj", self.attention(x, x, x)[0], self.core)
            return self.pair(x[:, 0], x[:, 1]).sum() + (mixed @ self.last).sum() + torch.baddbmm(x, x @ x.mT, x).sum()

    net, (b, s) = Net(), (6, 5)
    first, projections, scores = 2 * b * s * 96, 2 * b * s * 4 * 144, 2 * 2 * b * s * s * 12
    core, last, pair, products = 2 * b * s * 72, 2 * b * s * 6, 2 * b * 4 * 144, 2 * 2 * b * s * s * 12
    truth = 2 * first + 3 * (projections + scores + core + last + pair + products)
    run = plain(net, [torch.randn(b, s, 8) for _ in range(STEPS)], lambda x: net(x) * 1e-3)
    # torch computes a bilinear layer as a product of one input with the weight, and a sum over the other
    return run.flops((truth - 3 * last - pair, truth + 2 * pair), None, "float32")


@case
def formats_by_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(32, 64, 16), nn.Linear(16, 48)

        def forward(self, x):
            x = self.body(x)
            with torch.autocast("cpu", enabled=False):
                return self.head(x.float())

    loader = DataLoader(Rows(lambda n: torch.randn(32), 8 * STEPS), 8)
    run = accelerate(Net(), loader, lambda m, b: m(b).square().mean(), mixed_precision="bf16")
    body, head = mlp_flops(8, 32, 64, 16), 3 * 2 * 8 * 16 * 48
    formats = run.of(Flops)[0].by_dtype
    numbers = [Number(name, formats.get(name), truth) for name, truth in (("bfloat16", body), ("float32", head))]
    return numbers + run.flops(body + head, body + head, "bfloat16")


@case
def sharpness_aware_steps():
    net = mlp(16, 32, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(batch):
        for sign in (1, -1):
            net(batch).square().mean().backward()
            with torch.no_grad():
                for p in net.parameters():
                    p.add_(p.grad, alpha=sign * 1e-3)
        optimizer.step()
        optimizer.zero_grad()

    run = loop(net, optimizer, [torch.randn(8, 16) for _ in range(STEPS)], step)
    return run.amounts(samples=[8] * STEPS) + run.flops(2 * mlp_flops(8, 16, 32, 8), None, "float32")


@case
def teacher_after_the_student():
    net, teacher = mlp(16, 32, 8), mlp(16, 128, 8).requires_grad_(False).eval()

    def loss(x):
        result = net(x)
        with torch.no_grad():
            target = teacher(x)
        return (result - target).square().mean()

    run = plain(net, [torch.randn(8, 16) for _ in range(STEPS)], loss)
    return run.flops(mlp_flops(8, 16, 32, 8) + 2 * 8 * (16 * 128 + 128 * 8), None, "float32")


@case
def grids_of_equal_patches():
    class Net(nn.Module):
        """Attends within the images whose sizes `grid` has, as vision towers do."""

        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 48), nn.Linear(16, 4)

        def forward(self, patches, grid):
            q, k, v = self.qkv(patches).chunk(3, -1)
            parts = grid.prod(1).tolist()
            split = [t.split(parts) for t in (q, k, v)]
            x = [
                functional.scaled_dot_product_attention(*(t[None, None] for t in image))[0, 0] for image in zip(*split)
            ]
            return self.out(torch.cat(x))

    shapes = ([[4, 4], [4, 4], [4, 4]], [[8, 4], [2, 4], [2, 4]], [[2, 2], [2, 2], [5, 8]], [[6, 4], [4, 4], [2, 4]])
    grids = [torch.tensor(random.choice(shapes)) for _ in range(40)]
    net = Net()
    run = plain(net, [{"patches": torch.randn(48, 8), "grid": g} for g in grids], lambda b: net(**b).square().mean())
    linear = 2 * 2 * 48 * 8 * 48 + 3 * 2 * 48 * 64
    return run.flops([linear + 12 * 16 * sum(n * n for n in g.prod(1).tolist()) for g in grids])


@case
def evaluations_between_steps():
    net = mlp(16, 32, 8)
    optimizer, steps = torch.optim.SGD(net.parameters(), lr=1e-3), iter(range(1, 99))

    def step(batch):
        if next(steps) in (2, 7, 11):
            net.eval()
            with torch.no_grad():
                net(torch.randn(500, 16))
            net.train()
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    run = loop(net, optimizer, [torch.randn(8, 16) for _ in range(STEPS)], step)
    numbers = [Number("evaluations", run.summary.span_counts.get("evaluation"), 3), *run.amounts(samples=[8] * STEPS)]
    return numbers + run.flops(truth := mlp_flops(8, 16, 32, 8), truth, "float32")


@case
def peak_of_another_format():
    net = mlp(16, 32, 8)
    run = plain(net, [torch.randn(8, 16) for _ in range(STEPS)], square(net), peaks="bf16=989.5")
    truth = mlp_flops(8, 16, 32, 8)
    return [*run.flops(truth, truth), Number("MFU is known", int(run.summary.mfu is not None), 0)]


class Deep(nn.Module):
    """Multiplies by one matrix again and again, without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x, depth):
        for _ in range(int(depth)):
            x = (x @ self.matrix).tanh()
        return x


@case
def depth_in_the_batch():
    net, depths = Deep(), [1 + random.randrange(4) for _ in range(40)]
    batches = [{"x": torch.randn(8, 16), "depth": torch.tensor(depth)} for depth in depths]
    run = plain(net, batches, lambda b: net(**b).square().mean())
    return run.flops([mlp_flops(8, *[16] * (depth + 1)) for depth in depths])


@case
def depth_that_grows_with_time():
    net, steps = Deep(), iter(range(1, 99))
    run = plain(net, [torch.randn(8, 16) for _ in range(60)], lambda x: net(x, 1 + next(steps) // 20).square().mean())
    return run.flops([mlp_flops(8, *[16] * (2 + step // 20)) for step in range(1, 61)])


# Memory ---------------------------------------------------------------------------------------------------------------


@case
def memory_of_frozen_and_tied_weights():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.frozen, self.head = (
                nn.Embedding(500, 32),
                nn.Linear(32, 32),
                nn.Linear(32, 500, bias=False),
            )
            self.head.weight = self.table.weight
            self.frozen.requires_grad_(False)
            self.register_buffer("angles", torch.zeros(1000, 16))

        def forward(self, input_ids, labels):
            x = self.head(self.frozen(self.table(input_ids)))
            return {"loss": functional.cross_entropy(x.flatten(0, 1), labels.flatten())}

    run = hf(Net(), Rows(lambda n: {"input_ids": ids(6), "labels": ids(6)}))
    trained = 500 * 32 * 4
    return run.memory(weights=trained + 4 * (32 * 33 + 16000), gradients=trained, optimizer=2 * trained)


class Own(torch.optim.Optimizer):
    """Keeps its state where `place` says: an own attribute, or nested in `state`."""

    def __init__(self, parameters, place: str) -> None:
        super().__init__(parameters, {})
        self.place, self.moments = place, {}

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            made = {"m": torch.zeros_like(p, dtype=torch.float32), "pair": [torch.eye(n) for n in p.shape]}
            if self.place == "own":
                self.moments.setdefault(p, made)
            elif not self.state[p]:
                self.state[p]["nested"] = made
            p.sub_(p.grad, alpha=1e-3)


def own_state(place: str) -> list[Number]:
    net = nn.Sequential(nn.Linear(64, 96, bias=False), nn.Tanh(), nn.Linear(96, 32, bias=False)).bfloat16()
    batches = [torch.randn(8, 64, dtype=torch.bfloat16) for _ in range(STEPS)]
    run = plain(net, batches, square(net), Own(net.parameters(), place))
    count = 64 * 96 + 96 * 32
    return run.memory(weights=2 * count, gradients=2 * count, optimizer=4 * (count + 64**2 + 2 * 96**2 + 32**2))


@case
def state_in_the_optimizers_own_attributes():
    return own_state("own")


@case
def state_nested_in_lists():
    return own_state("nested")


@case
def weights_in_one_storage():
    flat, slopes = torch.randn(64 * 96 + 96 * 32) / 10, torch.zeros(64 * 96 + 96 * 32)
    net = nn.Sequential(nn.Linear(64, 96, bias=False), nn.Tanh(), nn.Linear(96, 32, bias=False))
    net[0].weight = nn.Parameter(flat[: 64 * 96].view(96, 64))
    net[2].weight = nn.Parameter(flat[64 * 96 :].view(32, 96))
    net[0].weight.grad, net[2].weight.grad = slopes[: 64 * 96].view(96, 64), slopes[64 * 96 :].view(32, 96)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def step(batch):
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    run = loop(net, optimizer, [torch.randn(8, 64) for _ in range(STEPS)], step)
    return run.memory(weights=flat.nbytes, gradients=flat.nbytes, optimizer=flat.nbytes)


@case
def factored_state():
    net = mlp(64, 96, 32)
    optimizer = torch.optim.Adafactor(net.parameters(), lr=1e-3)
    run = plain(net, [torch.randn(8, 64) for _ in range(STEPS)], square(net), optimizer)
    count = 64 * 96 + 96 * 32 + 96 + 32
    return run.memory(weights=4 * count, gradients=4 * count, optimizer=4 * (64 + 96 + 96 + 32 + 96 + 32 + 4))


# Steps, spans and garbage ---------------------------------------------------------------------------------------------


@case
def evaluations_and_slow_saves():
    from transformers import Trainer, TrainerCallback

    class Sleepy(TrainerCallback):
        def on_save(self, *args, **kwargs):
            time.sleep(0.06)

        def on_evaluate(self, *args, **kwargs):
            time.sleep(0.05)

    class Timed(Trainer):
        seconds = Counter()  # noqa: RUF012 one trainer

        def evaluate(self, *args, **kwargs):
            start = time.perf_counter()
            result = super().evaluate(*args, **kwargs)
            self.seconds["evaluation"] += time.perf_counter() - start
            return result

        def _save_checkpoint(self, *args, **kwargs):
            start = time.perf_counter()
            super()._save_checkpoint(*args, **kwargs)
            self.seconds["checkpoint"] += 0.06 + time.perf_counter() - start

    rows = Rows(lambda n: {"input_ids": ids(6), "labels": ids(6)}, 20)
    plan = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 4, "max_steps": 12}
    run = hf(Decoder(), rows, kind=Timed, callbacks=[Sleepy()], **plan)
    numbers = [Number("steps", run.summary.steps, 12)]
    for kind, count in (("evaluation", 4), ("checkpoint", 3)):
        own = Timed.seconds[kind]
        numbers += [Number(f"{kind}s", run.summary.span_counts.get(kind), count)]
        numbers += [Number(f"{kind} seconds", run.summary.span_seconds.get(kind), (0.97 * own, 1.1 * own + 0.03))]
    return numbers + run.amounts(samples=[4] * 12)


@case
def validations_and_checkpoints():
    from lightning.pytorch.callbacks import ModelCheckpoint

    data = [torch.randn(4, 8) for _ in range(15)]
    saver = ModelCheckpoint(every_n_train_steps=4, save_top_k=-1)
    module, options = module_of(mlp(8, 4), lambda m, b: m(b).square().mean()), {"enable_checkpointing": True}
    run = lightning(module, data, callbacks=[saver], validation=data[:2], val_check_interval=5, **options)
    counts, seconds = run.summary.span_counts, run.summary.span_seconds.get("evaluation")
    numbers = [Number("steps", run.summary.steps, 15), Number("evaluations", counts.get("evaluation"), 3)]
    numbers += [Number("checkpoints", counts.get("checkpoint"), 3), Number("evaluation seconds", seconds, (0.12, 0.6))]
    return numbers + run.amounts(samples=[4] * 15) + run.flops(mlp_flops(4, 8, 4))


@case
def collections_of_the_program():
    net, steps = mlp(8, 4), iter(range(100))

    def loss(x):
        if next(steps) in (4, 8, 12):
            gc.collect()
        return net(x).square().mean()

    run = plain(net, [torch.randn(4, 8) for _ in range(STEPS)], loss)
    own = [record for record in run.of(Gc) if record.ours is None and not record.automatic and record.generation == 2]
    numbers = [Number("full collections of the program", len(own), 3)]
    return [*numbers, Number("their steps", sorted(record.step for record in own), [5, 9, 13])]


@case
def steps_that_a_scaler_skips():
    net, scaler = mlp(8, 4), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(batch):
        scaler.scale(net(batch).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    batches = [torch.full((4, 8), float("inf")) if n in (5, 9) else torch.randn(4, 8) for n in range(STEPS)]
    run = loop(net, optimizer, batches, step)
    return [Number("steps", run.summary.steps, 12), *run.amounts(samples=[8 if n in (5, 8) else 4 for n in range(12)])]


@case
def resumed_trainer():
    with tempfile.TemporaryDirectory() as directory:
        rows = Rows(lambda n: {"input_ids": ids(6), "labels": ids(6)})
        plan = {"save_strategy": "steps", "save_steps": 5, "directory": directory}
        hf(Decoder(), rows, max_steps=7, **plan)
        run = hf(Decoder(), rows, max_steps=12, resume=str(Path(directory) / "checkpoint-5"), **plan)
    numbers = [Number("attempt", run.summary.attempt, 2), Number("steps", run.summary.steps, 7)]
    numbers += [Number("samples", run.summary.samples, 28), Number("total samples", run.summary.total_samples, 48)]
    return [*numbers, Number("total tokens", run.summary.total_tokens, 288)]


@case
def stages_of_known_length():
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            time.sleep(0.010)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(0.015)
            return gradient

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(8, 4)

        def forward(self, x):
            return Slow.apply(self.net(x))

    class Waiting(list):
        def __iter__(self):
            for batch in super().__iter__():
                time.sleep(0.020)
                yield batch

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda *args: time.sleep(0.008))
    run = plain(net, Waiting(torch.randn(4, 8) for _ in range(40)), square(net), optimizer)
    mean = {
        name.removesuffix("_time"): seconds / run.summary.included_steps
        for name, seconds in run.summary.stage_seconds.items()
    }
    sleeps = {"data": 0.020, "forward": 0.010, "backward": 0.015, "optimizer": 0.008}
    return [Number(f"{name} ms", 1e3 * mean[name], (1e3 * s, 1e3 * s + 4)) for name, s in sleeps.items()]


@case
def spans_of_a_loop():
    net = mlp(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as directory:
        loader = [torch.randn(4, 8) for _ in range(STEPS)]
        with measure(model=net, optimizer=optimizer, loader=loader, config=settings(directory)) as perf:
            for number, batch in enumerate(perf.loader, 1):
                net(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if number % 5 == 0:
                    with perf.evaluation(), torch.no_grad():
                        net(torch.randn(100, 8))
                        time.sleep(0.05)
                if number % 4 == 0:
                    with perf.checkpoint():
                        time.sleep(0.07)
        run = reported(perf.summary, directory)
    counts, seconds = run.summary.span_counts, run.summary.span_seconds
    numbers = [Number("evaluations", counts.get("evaluation"), 2), Number("checkpoints", counts.get("checkpoint"), 3)]
    numbers += [Number("evaluation seconds", seconds.get("evaluation"), (0.10, 0.13))]
    numbers += [Number("checkpoint seconds", seconds.get("checkpoint"), (0.21, 0.25))]
    numbers += [Number("seconds of all steps", sum(run.column("step_time")), (0.0, 0.3))]
    return [*numbers, *run.amounts(samples=[4] * STEPS), *run.flops(mlp_flops(4, 8, 4))]


@case
def spans_of_accelerate():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from perf_callbacks.accelerate import attach

    AcceleratorState._reset_state(reset_partial_state=True)
    with tempfile.TemporaryDirectory() as directory:
        accelerator = Accelerator(cpu=True)
        attachment = attach(accelerator, settings(directory))
        net = mlp(8, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        training, validation = (DataLoader(Rows(lambda n: torch.randn(8), 20), 4) for _ in range(2))
        net, optimizer, training, validation = accelerator.prepare(net, optimizer, training, validation)
        for epoch in range(3):
            net.train()
            for batch in training:
                accelerator.backward(net(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            net.eval()
            with torch.no_grad():
                for batch in validation:
                    net(batch)
                    time.sleep(0.01)
            accelerator.save_state(f"{directory}/state-{epoch}")
        accelerator.end_training()
        run = reported(attachment.summary, directory)
    AcceleratorState._reset_state(reset_partial_state=True)
    counts, seconds = run.summary.span_counts, run.summary.span_seconds
    numbers = [Number("evaluations", counts.get("evaluation"), 3), Number("checkpoints", counts.get("checkpoint"), 3)]
    numbers += [Number("evaluation seconds", seconds.get("evaluation"), (0.15, 0.25))]
    return [*numbers, *run.amounts(samples=[4] * 15), *run.flops(mlp_flops(4, 8, 4))]


# Compiled programs, last: what they leave in the process should not reach the others -----------------------------------


def compiled(backend: str, kind: torch.dtype | None, dtype: str) -> list[Number]:
    net = torch.compile(mlp(16, 32, 32, 8), backend=backend)

    def loss(x):
        with torch.autocast("cpu", kind or torch.bfloat16, enabled=kind is not None):
            return net(x).float().square().mean()

    truth = mlp_flops(8, 16, 32, 32, 8)
    return plain(net, [torch.randn(8, 16) for _ in range(STEPS)], loss).flops(truth, truth, dtype)


@case
def compiled_by_inductor():
    return compiled("inductor", None, "float32")


@case
def compiled_by_aot_eager_under_autocast():
    return compiled("aot_eager", torch.bfloat16, "bfloat16")


@case
def flex_attention_with_a_block_mask():
    flex._validate_device = lambda *a, **k: None  # torch refuses gradients on a CPU, though its eager code has them
    h, s, d = 2, 256, 16
    mask = flex.create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 32), None, None, s, s, "cpu", BLOCK_SIZE=32)
    blocks = int(mask.kv_num_blocks.sum() + (0 if mask.full_kv_num_blocks is None else mask.full_kv_num_blocks.sum()))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 3 * h * d)

        def forward(self, x):
            q, k, v = self.qkv(x).view(2, s, 3, h, d).permute(2, 0, 3, 1, 4)
            return flex.flex_attention(q, k, v, block_mask=mask)

    net = Net()
    run = plain(net, [torch.randn(2, s, 8) for _ in range(STEPS)], square(net))
    linear, pair = 2 * 2 * 2 * s * 8 * 3 * h * d, 12 * 2 * h * d
    kept = sum(min(32, q + 1) for q in range(s))
    return run.flops((linear + pair * kept, linear + pair * blocks * 32 * 32))


@case
def compiled_and_called_twice():
    net = torch.compile(mlp(16, 32, 8), backend="aot_eager")
    batches = [(torch.randn(8, 16), torch.randn(8, 16)) for _ in range(STEPS)]
    run = plain(net, batches, lambda pair: (net(pair[0]) - net(pair[1])).square().mean())
    return run.amounts(samples=[8] * STEPS) + run.flops(2 * mlp_flops(8, 16, 32, 8), None, "float32")


@case
def compiled_with_micro_batches():
    net = torch.compile(mlp(16, 32, 8), backend="aot_eager", dynamic=True)
    optimizer, kept = torch.optim.SGD(net.parameters(), lr=1e-3), []

    def step(batch):
        kept.append(batch)
        net(batch).square().mean().backward()
        if len(kept) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()

    sizes = [4 + n % 5 for n in range(3 * STEPS)]
    run = loop(net, optimizer, [torch.randn(size, 16) for size in sizes], step)
    sums = [sum(sizes[n : n + 3]) for n in range(0, len(sizes), 3)]
    return run.amounts(samples=sums) + run.flops([mlp_flops(count, 16, 32, 8) for count in sums])


@case
def compiled_in_part():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(16, 32), mlp(32, 64, 32), nn.Linear(32, 8)
            self.middle.compile(backend="aot_eager")

        def forward(self, x):
            return self.last(checkpoint(self.middle, self.first(x), use_reentrant=False))

    net = Net()
    run = plain(net, [torch.randn(8, 16) for _ in range(STEPS)], square(net))
    truth = 2 * 8 * (2 * 16 * 32 + 3 * (2 * 32 * 64 + 32 * 8))
    return run.flops(truth, (truth, truth + 2 * 8 * 2 * 32 * 64), "float32")


@case
def compiled_decoder_with_frozen_layers():
    net = Decoder()
    net.layers[0].requires_grad_(False)
    run = hf(
        net,
        Rows(lambda n: {"input_ids": ids(9), "labels": ids(9)}),
        torch_compile=True,
        torch_compile_backend="aot_eager",
    )
    return run.flops(net.flops(4, 9) - 2 * 36 * 12 * 16**2, None, "float32")


@case
def compiled_optimizer():
    net = mlp(16, 32, 8)
    optimizer = torch.optim.AdamW(net.parameters())
    update = torch.compile(optimizer.step, backend="aot_eager")

    def step(batch):
        net(batch).square().mean().backward()
        update()
        optimizer.zero_grad()

    run = loop(net, optimizer, [torch.randn(8, 16) for _ in range(STEPS)], step)
    return [Number("steps", run.summary.steps, STEPS), *run.flops(truth := mlp_flops(8, 16, 32, 8), truth, "float32")]


@case
def plain_training_after_a_compiled_function():
    torch.compile(lambda x: x.sin().cos(), backend="aot_eager")(torch.randn(8))
    net = mlp(16, 32, 8)
    run = plain(net, [torch.randn(8, 16) for _ in range(STEPS)], square(net))
    numbers = run.flops(truth := mlp_flops(8, 16, 32, 8), truth, "float32")
    return [*numbers, Number("marked as a lower bound", int("lower_bound" in run.marks()), 0)]


# The table ------------------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    text = (
        " ".join(map(str, value))
        if isinstance(value, list)
        else f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
    )
    return text if len(text) < 200 else text[:200] + " …"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    order, outcomes = ("wrong", "failed", "marked", "absent", "right"), {}
    for name, function in CASES.items():
        if words and not any(word in name for word in words):
            continue
        torch.manual_seed(0)
        random.seed(0)
        try:
            with contextlib.redirect_stdout(cards := io.StringIO()):
                numbers = function()
        except Exception:  # noqa: BLE001 the next case may work
            traceback.print_exc(limit=-4)
            outcomes[name] = "failed"
            continue
        kinds = [number.outcome() for number in numbers]
        outcomes[name] = min(kinds, key=order.index)
        print(f"{name}: {outcomes[name]}")
        for number, kind in zip(numbers, kinds, strict=True):
            print(f"  {kind:7} {number.name}: {shown(number.got)}; true {shown(number.truth)} {' '.join(number.marks)}")
        print(
            *(
                f"  | {line}"
                for line in cards.getvalue().splitlines()
                if "unknown" in line or "≥" in line or "once" in line
            ),
            sep="\n",
        )
        sys.stdout.flush()
    print(f"{len(outcomes)} cases:", *(f"{count} {kind}" for kind, count in Counter(outcomes.values()).items()))


if __name__ == "__main__":
    main()
