"""One rank of a job that trains through an integration.

What the model really got, what was logged and how long the training thread was held up is left as facts.
"""

import functools
import importlib
import multiprocessing
import os
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from jobs.rank import Facts, plan as told
from perf_callbacks import PerfConfig
from perf_callbacks.kernel.fit import environment

LENGTHS = (16, 5, 9, 12, 3)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a rank is to do."""

    directory: str
    door: str = "loop"
    steps: int = 60
    step_seconds: float = 0.02
    measured: bool = True
    flops: str = "off"
    alone: bool = False
    """Train a model of one's own: no collective."""
    stays: bool = False
    """End when a file `end<rank>` says so."""
    closing: bool = True
    """False: the fit is still open when the process ends."""
    destroying: bool = True
    """Destroy the process group at the end."""
    dies_at: int | None = None
    """Step of the first attempt at which rank 1 dies."""
    kept: int = 0
    """Objects that are made and kept in each step."""
    cycles: int = 0
    """Objects that are garbage after each step, and refer to themselves."""
    workers: int = 0
    """Processes that load batches."""
    root: str | None = None
    """Directory with the `/sys` of another machine."""
    limits: dict[str, float] = field(default_factory=dict)
    """Of ours: what they are otherwise."""
    meets: bool = False
    """Ranks meet in each forward, rank 0 first: a collective that a stopwatch times."""

    @property
    def rank(self):
        return int(os.environ["RANK"])

    @property
    def attempt(self):
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    @property
    def config(self):
        return PerfConfig(output_dir=self.directory, enabled=self.measured, flops=self.flops)


class Net(nn.Module):
    """Predicts tokens, a while; keeps in mind what it got."""

    def __init__(self, plan, facts):
        super().__init__()
        self.embedding = nn.Embedding(64, 4)
        self.head = nn.Linear(4, 64)
        self.got, self.times, self.kept, self.cpus = [], [], [], []
        self.met = [] if plan.meets else None
        self.plan, self.facts = plan, facts

    def forward(self, input_ids=None, attention_mask=None, labels=None):
        plan = self.plan
        if (plan.rank, len(self.got) + 1, plan.attempt) == (1, plan.dies_at, 0):
            os._exit(1)
        self.got.append([*input_ids.shape, int(attention_mask.sum())])
        self.times.append(time.perf_counter())
        self.facts.tell(step=len(self.got))
        self.cpus.append(masks())
        self.kept.append([[] for _ in range(plan.kept)])
        for _ in range(plan.cycles):
            cycle = []
            cycle.append(cycle)
        time.sleep(plan.step_seconds)
        if self.met is not None:
            time.sleep(plan.rank * plan.step_seconds)
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

    def __len__(self):
        return 203

    def __getitem__(self, index):
        return torch.full((LENGTHS[index % 7 % 5],), 1 + index % 63)


def padded(texts):
    """A batch as wide as its longest text."""
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids}


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
    with ExitStack() as stack:
        perf = stack.enter_context(measure(model=model, optimizer=optimizer, loader=data, config=plan.config))
        facts.tell(enter_seconds=time.perf_counter() - began)
        for number, inputs in enumerate(perf.loader, 1):
            model(**inputs)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % 5 == 0:
                rows.append({"step": number, **perf.row()})
        began = time.perf_counter()
        if not plan.closing:
            facts.open = stack.pop_all()
    facts.tell(exit_seconds=time.perf_counter() - began)
    return rows


def transformers(plan, net, facts):
    from trainings import models

    from perf_callbacks.transformers import PerfCallback

    arguments = models.training_arguments(
        plan.directory,
        max_steps=plan.steps,
        logging_steps=5,
        remove_unused_columns=False,
        dataloader_num_workers=plan.workers,
    )
    options = {"model": net, "train_dataset": Texts(), "data_collator": padded}
    trainer = models.trainer(arguments, PerfCallback(plan.config), **options)
    trainer.train()
    return trainer.state.log_history


def lightning(plan, net, facts):
    from trainings import lightning_kit

    kinds, rows = lightning_kit.tree(), []

    class Logger(kinds.CSVLogger):
        def log_metrics(self, metrics, step=None):
            rows.append({"step": step + 1, **metrics})  # Lightning's steps begin at 0

    class Module(kinds.pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, batch_idx):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return sgd(self)

    options = {"max_steps": plan.steps, "devices": 2, "strategy": "ddp", "log_every_n_steps": 5}
    logger = Logger(plan.directory)
    trainer = lightning_kit.trainer(plan.directory, kinds.PerfCallback(plan.config), logger=logger, **options)
    trainer.fit(Module(), DataLoader(Texts(), batch_size=4, collate_fn=padded, num_workers=plan.workers))
    return rows


def accelerate(plan, net, facts):
    from accelerate import Accelerator
    from trainings.accelerated import Tracker

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator()
    accelerator.trackers = [Tracker()]
    rows = accelerator.trackers[0].rows
    with attach(accelerator, plan.config) if plan.measured else nullcontext():
        loader = DataLoader(Texts(), batch_size=4, collate_fn=padded, num_workers=plan.workers)
        model, optimizer, loader = accelerator.prepare(net, sgd(net), loader)
        while len(net.got) < plan.steps:
            for inputs in loader:
                accelerator.backward(model(**inputs)["loss"])
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
    facts = Facts(plan.directory)
    net = Net(plan, facts)
    rows = globals()[plan.door](plan, net, facts)
    waits = [after - before for before, after in zip(net.times, net.times[1:], strict=False)]
    facts.tell(done=True, got=net.got, met=net.met, rows=rows, waits=waits, cpus=net.cpus, cpus_after=masks()[0])
    while plan.stays and not Path(plan.directory, f"end{plan.rank}").exists():
        time.sleep(0.02)
    if not plan.alone or plan.dies_at is not None:
        dist.barrier()
    if plan.destroying:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Plan(**told()))
