"""One rank of a job that hangs, or of one in which much is slow, through one of the integrations.

`benchmarks/stalls.py` starts it. The comments name the lines that a message has to name.
"""

import ctypes
import json
import os
import sys
import threading
import time
from itertools import islice
from pathlib import Path

PATIENCE = 3.0
HANG_AT = 6
"""The step that hangs."""


class Plan:
    """What a rank is to do, and where it says how far it is."""

    def __init__(self, text: str) -> None:
        values = json.loads(text)
        self.door, self.case, self.directory = values["door"], values["case"], Path(values["directory"])
        self.hangs, self.healthy = values["hangs"], values["healthy"]
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.step = 0
        self.group = None

    def note(self, word: str) -> None:
        (self.directory / f"{word}{self.rank}").write_text(str(time.time()))

    def at(self, *cases: str) -> bool:
        """True: this is where it hangs, or takes its time."""
        due = self.hangs and self.case in cases and self.step == HANG_AT - 1
        if due:
            self.note("hangs")
        return due

    @property
    def often(self) -> int:
        """Steps between two checkpoints."""
        return 40 if self.healthy else HANG_AT - 1 if self.case == "checkpoint" else 10**6

    def saves(self, step: int) -> bool:
        return step % self.often == 0

    def loader(self) -> None:
        if self.at("next(loader)", "single, next(loader)"):
            threading.Event().wait()  # hang: loader

    def forward(self) -> None:
        if self.at("lock", "single, lock"):
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()  # hang: lock
        if self.at("collective"):
            import torch

            torch.distributed.all_reduce(torch.ones(1), group=self.group)  # hang: collective
        if self.at("SIGSTOP"):
            time.sleep(1e6)  # hang: stopped
        if self.at("GIL held"):
            time.sleep(1.8)  # hang: GIL
            ctypes.PyDLL(None).sleep(1000)
        if self.healthy:
            time.sleep({0: 2.5, 33: 1.5, 66: 1.5}.get(self.step, 0.15))  # compiled, and 3 % ten times as long
        self.step += 1

    def checkpoint(self) -> None:
        if self.hangs and self.case == "checkpoint":
            self.note("hangs")
            threading.Event().wait()  # hang: checkpoint
        if self.healthy and self.rank == 0:
            time.sleep(6.0)

    def evaluation(self) -> None:
        if self.healthy:
            time.sleep(6.0)


def model_of(plan: Plan):
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, **_):
            if self.training:
                plan.forward()
            return {"loss": self.layer(x).square().mean()}

    return Net()


def data_of(plan: Plan):
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, index):
            plan.loader()
            return {"x": torch.ones(4)}

    return Rows()


def settings(plan: Plan):
    from perf_callbacks import PerfConfig

    return PerfConfig(output_dir=str(plan.directory), stall_after=str(PATIENCE), flops="off", gc="observe")


def train_loop(plan: Plan, steps: int) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from perf_callbacks.loop import measure

    if plan.world_size > 1:
        torch.distributed.init_process_group("gloo")
        plan.group = torch.distributed.new_group()
    model = DistributedDataParallel(model_of(plan)) if plan.world_size > 1 else model_of(plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data_of(plan), batch_size=1)
    with measure(model=model, optimizer=optimizer, loader=loader, config=settings(plan)) as perf:
        for number, batch in enumerate(islice(perf.loader, steps), 1):
            model(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            # Only rank 0 saves in a healthy run: the others go on, and wait in their next backward.
            if plan.saves(number) and (plan.rank == 0 or not plan.healthy):
                with perf.checkpoint():
                    plan.checkpoint()
            if plan.healthy and number % 50 == 0:
                with perf.evaluation():
                    plan.evaluation()


def train_transformers(plan: Plan, steps: int) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    class Slow(Trainer):
        def save_model(self, *args, **kwargs):
            plan.checkpoint()
            super().save_model(*args, **kwargs)

        def evaluate(self, *_, **__):
            plan.evaluation()
            return {}

    class Group(TrainerCallback):
        def on_train_begin(self, *_, **__):
            if plan.world_size > 1:
                import torch

                plan.group = torch.distributed.new_group()

    evaluates = {"eval_strategy": "steps", "eval_steps": 50} if plan.healthy else {}
    arguments = TrainingArguments(
        output_dir=str(plan.directory), max_steps=steps, per_device_train_batch_size=1, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="steps", save_steps=plan.often, logging_steps=10,
        ddp_backend="gloo" if plan.world_size > 1 else None, **evaluates,
    )  # fmt: skip
    rows = data_of(plan)
    callbacks = [PerfCallback(settings(plan)), Group()]
    Slow(model_of(plan), arguments, train_dataset=rows, eval_dataset=rows, callbacks=callbacks).train()


def train_lightning(plan: Plan, steps: int) -> None:
    import torch
    from lightning import pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from perf_callbacks.lightning import PerfCallback

    net = model_of(plan)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def on_train_start(self):
            if plan.world_size > 1:
                plan.group = torch.distributed.new_group()

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def validation_step(self, *_):
            plan.evaluation()

        def on_save_checkpoint(self, _):
            plan.checkpoint()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    loader = torch.utils.data.DataLoader(data_of(plan), batch_size=1)
    trainer = pl.Trainer(
        default_root_dir=str(plan.directory), max_steps=steps, accelerator="cpu", devices=plan.world_size,
        strategy="ddp" if plan.world_size > 1 else "auto", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=True, num_sanity_val_steps=0,
        limit_val_batches=1 if plan.healthy else 0, val_check_interval=50 if plan.healthy else None,
        callbacks=[
            PerfCallback(settings(plan)),
            ModelCheckpoint(str(plan.directory), every_n_train_steps=plan.often),
        ],
    )  # fmt: skip
    trainer.fit(Module(), loader, loader if plan.healthy else None)


def train_accelerate(plan: Plan, steps: int) -> None:
    import torch
    from accelerate import Accelerator

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator(cpu=True)
    if plan.world_size > 1:
        plan.group = torch.distributed.new_group()
    with attach(accelerator, settings(plan)):
        net = model_of(plan)
        loader = torch.utils.data.DataLoader(data_of(plan), batch_size=1)
        net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), loader)
        accelerator.register_save_state_pre_hook(lambda *_: plan.checkpoint())
        for number, batch in enumerate(islice(loader, steps), 1):
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if plan.saves(number):
                accelerator.save_state(str(plan.directory / "state"))
            if plan.healthy and number % 50 == 0:
                net.eval()
                with torch.no_grad():
                    net(x=torch.ones(1, 4))
                    plan.evaluation()
                net.train()


def main() -> None:
    import torch

    torch.set_num_threads(1)
    plan = Plan(sys.argv[1])
    globals()[f"train_{plan.door}"](plan, 100 if plan.healthy else 1000)
    plan.note("done")


if __name__ == "__main__":
    main()
