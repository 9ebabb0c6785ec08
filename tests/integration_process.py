"""One rank of a job that trains through an integration, in a process of its own.

What the model really got, what was logged and how long the training thread was held up is left in a file.
"""

import functools
import importlib
import json
import multiprocessing
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.fit import environment

LENGTHS = (16, 5, 9, 12, 3)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a rank is to do."""

    directory: str
    door: str
    rank: int
    world_size: int
    steps: int = 60
    step_seconds: float = 0.02
    measured: bool = True
    flops: str = "off"
    alone: bool = False
    """Train a model of one's own: no collective."""
    kept: int = 0
    """Objects that are made and kept in each step."""
    cycles: int = 0
    """Objects that are garbage after each step, and refer to themselves."""
    workers: int = 0
    """Processes that load batches."""
    root: str | None = None
    """Directory with the `/sys` of another machine."""
    limits: dict[str, int] = field(default_factory=dict)
    """Of ours: what they are otherwise."""
    meets: bool = False
    """Ranks meet in each forward, rank 0 first: a collective that a stopwatch times."""


class Facts:
    """What is left in the file."""

    def __init__(self, plan):
        self._path = Path(plan.directory) / f"rank{plan.rank}.json"
        self._facts = {}

    def tell(self, **more):
        self._facts |= more
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._facts))
        new.replace(self._path)


class Net(nn.Module):
    """Predicts tokens, a while; keeps in mind what it got."""

    def __init__(self, plan, facts):
        super().__init__()
        self.embedding = nn.Embedding(64, 4)
        self.head = nn.Linear(4, 64)
        self.got, self.times, self.kept, self.cpus = [], [], [], []
        self._kept, self._cycles = plan.kept, plan.cycles
        self.met = [] if plan.meets else None
        self._late_seconds = plan.rank * plan.step_seconds
        self._told = facts.tell
        self._step_seconds = plan.step_seconds

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        self.got.append([*input_ids.shape, int(attention_mask.sum())])
        self.times.append(time.perf_counter())
        self._told(step=len(self.got))
        self.cpus.append(masks())
        self.kept.append([[] for _ in range(self._kept)])
        for _ in range(self._cycles):
            cycle = []
            cycle.append(cycle)
        time.sleep(self._step_seconds)
        if self.met is not None:
            time.sleep(self._late_seconds)
            began = time.perf_counter()
            dist.all_reduce(torch.ones(1))
            self.met.append(time.perf_counter() - began)
        logits = self.head(self.embedding(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def masks():
    """The CPUs of each thread of this process, and of each loader worker, where they differ."""
    threads = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    workers = [child.pid for child in multiprocessing.active_children()]
    return [sorted({*filter(None, map(mask, these))}) for these in (threads, workers)]


def mask(thread):
    """The CPUs of a thread; none if it has ended since it was seen."""
    try:
        return tuple(sorted(os.sched_getaffinity(thread)))
    except ProcessLookupError:
        return ()


def amounts(rank, step):
    """Rows, columns and unmasked elements of a rank's batch in the loop: uneven in each."""
    rows, columns = 1 + (3 * rank + step * step) % 5, 4 + (5 * rank + step) % 9
    return rows, columns, rows * columns - (rank + step) % 4


def batch(rank, step):
    rows, columns, useful = amounts(rank, step)
    mask = (torch.arange(rows * columns) < useful).long().view(rows, columns)
    return {"input_ids": mask, "attention_mask": mask, "labels": mask}


class Texts(torch.utils.data.Dataset):
    """Texts of several lengths."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return torch.full((LENGTHS[index % 7 % 5],), 1 + index % 63)


def padded(texts):
    """A batch as wide as its longest text."""
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids}


def callbacks(plan, door):
    return [door.PerfCallback(config(plan))] if plan.measured else []


def config(plan):
    return PerfConfig(output_dir=plan.directory, enabled=plan.measured, flops=plan.flops)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.01)


def loop(plan, net, facts):
    from perf_callbacks.loop import measure

    dist.init_process_group("gloo")
    dist.barrier()
    model = net if plan.alone else DistributedDataParallel(net)
    data = [batch(plan.rank, step) for step in range(1, plan.steps + 1)]
    optimizer, rows = sgd(net), []
    began = time.perf_counter()
    with measure(model=model, optimizer=optimizer, loader=data, config=config(plan)) as perf:
        facts.tell(enter_seconds=time.perf_counter() - began)
        for number, one in enumerate(perf.loader, 1):
            model(**one)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % 5 == 0:
                rows.append({"step": number, **perf.row()})
        began = time.perf_counter()
    facts.tell(exit_seconds=time.perf_counter() - began)
    return rows


def transformers(plan, net, facts):
    from trainings import models

    import perf_callbacks.transformers as door

    arguments = models.training_arguments(
        plan.directory,
        max_steps=plan.steps,
        logging_steps=5,
        remove_unused_columns=False,
        dataloader_num_workers=plan.workers,
    )
    options = {"model": net, "train_dataset": Texts(203), "data_collator": padded}
    trainer = models.trainer(arguments, *callbacks(plan, door), **options)
    trainer.train()
    return trainer.state.log_history


def lightning(plan, net, facts):
    from lightning import pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    import perf_callbacks.lightning as door

    rows = []

    class Kept(CSVLogger):
        def log_metrics(self, metrics, step=None):
            rows.append({"step": step + 1, **metrics})  # Lightning's steps begin at 0

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, batch_idx):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return sgd(self)

    ours = callbacks(plan, door)
    trainer = pl.Trainer(
        default_root_dir=plan.directory, max_steps=plan.steps, accelerator="cpu", devices=plan.world_size,
        strategy="ddp", log_every_n_steps=5, logger=Kept(plan.directory), enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=ours,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Texts(203), batch_size=4, collate_fn=padded, num_workers=plan.workers))
    facts.tell(data_parallel=ours[0]._place(trainer, None).data_parallel)
    return rows


def accelerate(plan, net, facts):
    from accelerate import Accelerator
    from trainings.accelerated import Tracker

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator()
    accelerator.trackers = [Tracker()]
    rows = accelerator.trackers[0].rows
    with attach(accelerator, config(plan)) if plan.measured else nullcontext():
        loader = DataLoader(Texts(203), batch_size=4, collate_fn=padded, num_workers=plan.workers)
        model, optimizer, loader = accelerator.prepare(net, sgd(net), loader)
        while len(net.got) < plan.steps:
            for one in loader:
                accelerator.backward(model(**one)["loss"])
                optimizer.step()
                optimizer.zero_grad()
                if len(net.got) % 5 == 0:
                    accelerator.log({"loss": 1.0}, step=len(net.got))
                if len(net.got) == plan.steps:
                    break
    return [{"step": step, **values} for step, values in rows]


def change(plan):
    """Have limits of ours be what they are to be."""
    for name, value in plan.limits.items():
        module, _, limit = name.rpartition(".")
        setattr(importlib.import_module(f"perf_callbacks.{module}"), limit, value)
    if plan.root is not None:
        environment.read = functools.partial(environment.read, root=Path(plan.root))


def main(plan):
    torch.set_num_threads(1)
    change(plan)
    facts = Facts(plan)
    net = Net(plan, facts)
    rows = globals()[plan.door](plan, net, facts)
    waits = [after - before for before, after in zip(net.times, net.times[1:], strict=False)]
    facts.tell(done=True, got=net.got, met=net.met, rows=rows, waits=waits, cpus=net.cpus, cpus_after=masks()[0])
    if not plan.alone:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
