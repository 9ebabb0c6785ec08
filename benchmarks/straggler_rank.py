"""One rank of a job with faults, for `stragglers.py`: it trains through an integration and notes each fault.

Run by `stragglers.py`, with its plan as the argument. The model has buffers, which DDP broadcasts, and takes
`**kwargs`, so transformers' Trainer gathers the number of items of each batch. Each loss is reduced for a log.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig

BATCH, WIDTH, LAYERS = 16, 256, 4
BURN = """
import time
for line in iter(input, ""):
    until = time.monotonic() + float(line)
    while time.monotonic() < until:
        pass
"""


class Thief:
    """Processes that take a CPU from this rank."""

    def __init__(self):
        self.cpus = os.sched_getaffinity(0)
        self.burners = [
            subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, text=True) for _ in range(8)
        ]

    def steal(self, seconds):
        """Take most of a CPU for so long, and confine this rank to it."""
        cpu = min(self.cpus)
        os.sched_setaffinity(0, {cpu})
        for burner in self.burners:
            os.sched_setaffinity(burner.pid, {cpu})
            burner.stdin.write(f"{seconds}\n")
            burner.stdin.flush()

    def release(self):
        """Let this rank run on all of its CPUs again."""
        os.sched_setaffinity(0, self.cpus)

    def end(self):
        for burner in self.burners:
            burner.kill()


def delay(file):
    """The seconds that a thread was ready to run and had no CPU."""
    return int(os.pread(file, 64, 0).split()[1]) / 1e9


class Faults:
    """Faults of this rank, by step, and what they took."""

    def __init__(self, plan):
        self.plan, self.done = plan, 0
        self.mine = {step: (cause, seconds) for step, rank, cause, seconds in plan["faults"] if rank == plan["rank"]}
        self.truth, self.delays, self.began, self.slept = [], [], [], 0.0
        self.kept = [[] for _ in range(400_000)]
        self.file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self.thief = Thief() if any(cause == "steal" for cause, _ in self.mine.values()) else None

    def here(self, cause):
        """The seconds of a fault of that cause in this step."""
        due = self.mine.get(self.done + 1, (None, 0.0))
        return due[1] if due[0] == cause else 0.0

    def note(self, cause, began):
        self.truth.append((self.done + 1, cause, time.perf_counter() - began))

    def fetching(self):
        """A batch is fetched."""
        seconds, began = self.here("data"), time.perf_counter()
        if seconds and ("data", self.done) not in self.seen:
            self.seen.add(("data", self.done))
            time.sleep(seconds)
            self.note("data", began)

    seen = set()  # noqa: RUF012 one per process

    def computing(self):
        """The model begins to compute."""
        self.delays.append(delay(self.file))
        began = time.perf_counter()
        self.began.append(began)
        if self.here("gc"):
            gc.collect()
            self.note("gc", began)
        if self.here("host"):
            time.sleep(self.here("host"))
            self.note("host", began)
        if self.here("steal"):
            self.thief.steal(self.here("steal"))
            self.note("steal", began)
        if self.truth and self.truth[-1][1] == "steal" and self.done == self.truth[-1][0] + 20:
            self.thief.release()
        time.sleep(self.plan["step"])
        rank, first, last, share = self.plan["slow"]
        if rank == self.plan["rank"] and first <= self.done < last:
            began = time.perf_counter()
            time.sleep(share * self.plan["step"])
            self.slept += time.perf_counter() - began
        self.done += 1


class Rows(Dataset):
    def __init__(self, faults, steps, world_size):
        self.faults, self.length = faults, steps * BATCH * world_size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.faults.fetching()
        return {"x": torch.full((WIDTH,), float(index % 7)), "labels": torch.zeros(())}


class Net(nn.Module):
    def __init__(self, faults):
        super().__init__()
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.layers = nn.Sequential(layers[0], nn.BatchNorm1d(WIDTH), *layers[1:])
        self.faults = [faults]

    def forward(self, x, labels=None, **kwargs):  # noqa: ARG002 transformers' Trainer looks for both
        self.faults[0].computing()
        return {"loss": self.layers(x).pow(2).mean()}


def with_transformers(plan, faults, config):
    from transformers import Trainer, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    arguments = TrainingArguments(
        output_dir=plan["directory"], max_steps=plan["steps"], per_device_train_batch_size=BATCH, use_cpu=True,
        report_to=[], save_strategy="no", logging_steps=10_000, disable_tqdm=True, ddp_find_unused_parameters=False,
    )  # fmt: skip
    data = Rows(faults, plan["steps"], plan["world_size"])
    Trainer(Net(faults), arguments, train_dataset=data, callbacks=[PerfCallback(config)]).train()


def with_lightning(plan, faults, config):
    import lightning

    from perf_callbacks.lightning import PerfCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net(faults)

        def training_step(self, batch, _):
            loss = self.net(**batch)["loss"]
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=plan["world_size"], strategy="ddp", max_steps=plan["steps"], logger=False,
        callbacks=[PerfCallback(config)], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Rows(faults, plan["steps"], plan["world_size"]), batch_size=BATCH))


def with_accelerate(plan, faults, config):
    from accelerate import Accelerator

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator(cpu=True, project_dir=plan["directory"])
    with attach(accelerator, config):
        model = Net(faults)
        model, optimizer, loader = accelerator.prepare(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-4),
            DataLoader(Rows(faults, plan["steps"], plan["world_size"]), batch_size=BATCH),
        )
        for batch in loader:
            loss = model(**batch)["loss"]
            accelerator.gather_for_metrics(loss.detach())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def main(plan):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.disable()
    faults = Faults(plan)
    config = PerfConfig(
        output_dir=plan["directory"], gc="observe", gc_interval=50, measure_peak="off", flops="off", affinity="off"
    )
    train = {"transformers": with_transformers, "lightning": with_lightning, "accelerate": with_accelerate}
    train[plan["door"]](plan, faults, config)
    told = {
        "truth": faults.truth,
        "delays": faults.delays,
        "slept": faults.slept,
        "times": [end - begin for begin, end in pairwise(faults.began)],
    }
    Path(plan["directory"], f"rank{plan['rank']}.told").write_text(json.dumps(told), encoding="utf-8")
    if faults.thief is not None:
        faults.thief.end()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
