"""One rank of a job with faults, for `straggler_setups.py`: it trains in a set-up, and notes each fault.

`straggler_setups.py` imports the frameworks once, and forks each rank: an import takes seconds, and a run has many.
"""

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import sys
import threading
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from straggler_rank import Thief, delay
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig

BATCH, WIDTH, LAYERS, LENGTH = 8, 128, 4, 16
MOST_STEPS = 1000


class Slow:
    """A cycle of objects whose finalizer takes long, as those of closed files do."""

    def __init__(self, seconds):
        self.seconds, self.me = seconds, self

    def __del__(self):
        time.sleep(self.seconds)


class Faults:
    """Faults of this rank, by step and site. Each happens once, and notes what it took."""

    def __init__(self, plan):
        self.plan, self.step = plan, 1
        self.due = {(step, site): (fault, seconds) for step, rank, fault, site, seconds in plan["faults"]
                    if rank == plan["rank"]}  # fmt: skip
        self.truth, self.ends = [], []
        self.file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self.delays = [delay(self.file)]  # up to the end of each step
        self.thief = Thief() if any(fault == "steal" for fault, _ in self.due.values()) else None

    def at(self, site):
        """Training reaches a site of the current step: its fault happens, if one is due."""
        fault, seconds = self.due.pop((self.step, site), (None, 0.0))
        if fault is None:
            return
        began, delayed = time.perf_counter(), delay(self.file)
        if fault == "gc":
            Slow(seconds)
            gc.collect()
        elif fault == "steal":
            self.thief.steal(seconds)
            while time.perf_counter() < began + seconds:
                pass
            self.thief.release()
        else:
            time.sleep(seconds)
        took = time.perf_counter() - began
        self.truth.append((self.step, fault, site, took, delay(self.file) - delayed))

    def forward(self):
        """The model begins to compute: the step's usual work is a sleep, as if it waited for a device."""
        self.at("forward")
        time.sleep(self.plan["sleep"])

    def ended(self):
        """A step ends, after the user's code at its end."""
        self.at("callback")
        self.delays.append(delay(self.file))
        self.ends.append(time.perf_counter())
        self.step += 1


class Rows(Dataset):
    def __init__(self, faults, length, make):
        self.faults, self.length, self.make = faults, length, make

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.faults.at("data")
        return self.make(index)


def vectors(index):
    return {"x": torch.full((WIDTH,), float(index % 7)), "labels": torch.zeros(())}


def tokens(index):
    ids = torch.arange(LENGTH) + index % 7
    return {"input_ids": ids, "labels": ids}


def batches(faults, micro_batches=1, make=vectors):
    return DataLoader(Rows(faults, BATCH * micro_batches * faults.plan["steps"], make), batch_size=BATCH)


class Net(nn.Module):
    def __init__(self, faults, *, buffers=False):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        if buffers:
            self.layers.insert(1, nn.BatchNorm1d(WIDTH))
        self.faults = [faults]

    def forward(self, x, labels=None):  # noqa: ARG002 transformers' Trainer looks for the name
        self.faults[0].forward()
        return {"loss": self.layers(x).pow(2).mean()}


class NetOfKwargs(Net):
    """Takes `**kwargs`, as the models of transformers do: the Trainer then gathers the number of items of a batch."""

    def forward(self, x, labels=None, **kwargs):  # noqa: ARG002
        return super().forward(x, labels)


class SlowAdamW(torch.optim.AdamW):
    """An optimizer that takes long in some steps."""

    faults = None

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.faults.at("optimizer")
        super().step()
        return loss


def optimizer_of(faults, model):
    SlowAdamW.faults = faults
    return SlowAdamW(model.parameters(), lr=1e-4)


def nothing(_):
    """Do nothing with a loss."""


def loop(faults, config, model, *, optimizer=None, micro_batches=1, around=contextlib.nullcontext, **do):
    """Train in a plain loop.

    `do` has functions to call with the loss at places of the step: after the `loss`, the `backward`, the `step`.
    """
    from perf_callbacks.loop import measure

    after = {**dict.fromkeys(("loss", "backward", "step"), nothing), **do}
    optimizer = optimizer or optimizer_of(faults, model)
    with (
        measure(model=model, optimizer=optimizer, loader=batches(faults, micro_batches), config=config) as perf,
        around(),
    ):
        for place, batch in enumerate(perf.loader, start=1):
            whole = place % micro_batches == 0
            with contextlib.nullcontext() if whole else model.no_sync():
                loss = model(**batch)["loss"]
                faults.at("loss")
                after["loss"](loss)
                loss.backward()
            if whole:
                after["backward"](loss)
                optimizer.step()
                optimizer.zero_grad()
                after["step"](loss)
                faults.ended()
    return perf.summary


def distributed(train):
    """Train in a process group."""

    def trained(faults, config):
        dist.init_process_group("gloo")
        return train(faults, config)

    return trained


def ddp(*, buffers=False, reduced=None, barrier=False, micro_batches=1, join=False, zero=False, **options):
    """A loop with DDP. `reduced`: the place after which the loss is reduced."""

    @distributed
    def train(faults, config):
        from torch.distributed.algorithms.join import Join
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = DistributedDataParallel(Net(faults, buffers=buffers), **options)
        SlowAdamW.faults = faults
        do = {reduced: lambda loss: dist.all_reduce(loss.detach().clone())} if reduced else {}
        if barrier:  # after the user's code
            do["step"] = lambda _: (faults.at("callback"), dist.barrier())
        return loop(
            faults, config, model, micro_batches=micro_batches, **do,
            around=(lambda: Join([model])) if join else contextlib.nullcontext,
            optimizer=ZeroRedundancyOptimizer(model.parameters(), SlowAdamW, lr=1e-4) if zero else None,
        )  # fmt: skip

    return train


@distributed
def by_hand(faults, config):
    """Gradients are reduced by the loop, one by one."""
    model = Net(faults)

    def reduce(_):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    return loop(faults, config, model, backward=reduce)


@distributed
def fsdp1(faults, config):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = Net(faults)
    for place, layer in enumerate(model.layers):
        model.layers[place] = FullyShardedDataParallel(layer, device_id=torch.device("cpu"))
    return loop(faults, config, FullyShardedDataParallel(model, device_id=torch.device("cpu")))


@distributed
def fsdp2(faults, config):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = Net(faults)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return loop(faults, config, fully_shard(model, mesh=mesh))


@distributed
def tensor_parallel(faults, config):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    styles = [ColwiseParallel(), RowwiseParallel()]
    plan = {f"layers.{place}": styles[place % 2] for place in range(LAYERS)}
    return loop(faults, config, parallelize_module(Net(faults), mesh, plan))


def accelerate(*, buffers=False, gather=False, dispatch=False, local_steps=0):
    """A loop with Accelerate. `local_steps`: steps between two averages of the parameters with LocalSGD."""

    def train(faults, config):
        from accelerate import Accelerator
        from accelerate.local_sgd import LocalSGD
        from accelerate.utils import DataLoaderConfiguration

        from perf_callbacks.accelerate import attach

        loading = DataLoaderConfiguration(dispatch_batches=True) if dispatch else None
        accelerator = Accelerator(cpu=True, dataloader_config=loading)
        with attach(accelerator, config) as attached:
            model = Net(faults, buffers=buffers)
            ranks = accelerator.num_processes  # a batch for each of them
            model, optimizer, loader = accelerator.prepare(model, optimizer_of(faults, model), batches(faults, ranks))
            local = LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=local_steps or 1,
                             enabled=local_steps > 0)  # fmt: skip
            with local:
                for batch in loader:
                    loss = model(**batch)["loss"]
                    faults.at("loss")
                    if gather:
                        accelerator.gather_for_metrics(loss.detach())
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    local.step()
                    faults.ended()
        return attached.summary

    return train


def transformers(kind, make=vectors):
    """Hugging Face's Trainer with a model of a `kind`."""

    def train(faults, config):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        from perf_callbacks.transformers import PerfCallback

        class SlowCallback(TrainerCallback):
            def on_step_end(self, *_, **__):
                faults.ended()

        class SlowLoss(Trainer):
            def compute_loss(self, *args, **kwargs):
                loss = super().compute_loss(*args, **kwargs)
                faults.at("loss")
                return loss

        plan = faults.plan
        arguments = TrainingArguments(
            output_dir=plan["directory"], max_steps=plan["steps"], per_device_train_batch_size=BATCH, use_cpu=True,
            report_to=[], save_strategy="no", logging_steps=10_000, disable_tqdm=True,
        )  # fmt: skip
        rows = Rows(faults, BATCH * plan["world_size"] * plan["steps"], make)
        callback, model = PerfCallback(config), kind(faults)
        trainer = SlowLoss(
            model, arguments, train_dataset=rows, callbacks=[callback, SlowCallback()],
            optimizers=(optimizer_of(faults, model), None),
        )  # fmt: skip
        trainer.train()
        return callback.summary

    return train


def llama(faults):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64)  # fmt: skip
    model = LlamaForCausalLM(sizes)
    model.model.register_forward_pre_hook(lambda *_: faults.forward())
    return model


def lightning(*, buffers=False, logged=False):
    """Lightning's Trainer. `logged`: the loss of each step is logged with `sync_dist`."""

    def train(faults, config):
        import lightning as pl

        from perf_callbacks.lightning import PerfCallback

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = Net(faults, buffers=buffers)

            def training_step(self, batch, _):
                loss = self.net(**batch)["loss"]
                faults.at("loss")
                if logged:
                    self.log("loss", loss, sync_dist=True)
                return loss

            def configure_optimizers(self):
                return optimizer_of(faults, self)

        class SlowCallback(pl.Callback):
            def on_train_batch_end(self, *_):
                faults.ended()

        plan, callback = faults.plan, PerfCallback(config)
        trainer = pl.Trainer(
            accelerator="cpu", devices=plan["world_size"], strategy="ddp", max_steps=plan["steps"],
            callbacks=[callback, SlowCallback()], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), batches(faults, plan["world_size"]))
        return callback.summary

    return train


SETUPS = {
    "plain": ddp(),
    "static_graph": ddp(static_graph=True),
    "find_unused": ddp(find_unused_parameters=True),
    "no_sync": ddp(micro_batches=2),
    "join": ddp(join=True),
    "loss_after_backward": ddp(reduced="backward"),
    "accelerate": accelerate(),
    "hf_no_kwargs": transformers(Net),
    "hf": transformers(NetOfKwargs),
    "hf_llama": transformers(llama, tokens),
    "buffers": ddp(buffers=True),
    "lightning_buffers": lightning(buffers=True),
    "accelerate_buffers": accelerate(buffers=True),
    "lightning_sync_dist": lightning(logged=True),
    "accelerate_gather": accelerate(gather=True),
    "loss_in_forward": ddp(reduced="loss"),
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "tensor_parallel": tensor_parallel,
    "accelerate_dispatch": accelerate(dispatch=True),
    "lightning": lightning(),
    "zero": ddp(zero=True),
    "barrier": ddp(barrier=True),
    "by_hand": by_hand,
    "local_sgd": accelerate(local_steps=8),
}


def main(plan):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    faults = Faults(plan)
    config = PerfConfig(
        output_dir=plan["directory"], gc="observe", measure_peak="off", flops="off", affinity="off",
        window=plan["window"],
    )  # fmt: skip
    gc.disable()  # a real collection, at a step that the plan doesn't know, is no error of the search
    gc.freeze()
    summary = SETUPS[plan["setup"]](faults, config)
    told = {
        "truth": faults.truth,
        "delays": faults.delays,
        "times": [end - begin for begin, end in zip(faults.ends, faults.ends[1:], strict=False)],
        "left": [[*at, *fault] for at, fault in faults.due.items()],
        "compared_steps": summary.stragglers.steps,
        "slowdown": summary.stragglers.slowdown,
    }
    Path(plan["directory"], f"rank{plan['rank']}.told").write_text(json.dumps(told), encoding="utf-8")
    if faults.thief is not None:
        faults.thief.end()
    if dist.is_initialized():
        dist.destroy_process_group()


class Forked:
    """A rank in a fork of this process."""

    def __init__(self, own, environ, errors):
        self.process = multiprocessing.get_context("fork").Process(target=self.run, args=(own, environ, errors))
        self.process.start()

    @staticmethod
    def run(own, environ, errors):
        os.environ |= environ
        file = errors.open("w")
        os.dup2(file.fileno(), sys.stderr.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        main(own)

    def poll(self):
        return self.process.exitcode

    def kill(self):
        self.process.kill()

    def wait(self):
        self.process.join()


MODULES = {
    "torch.distributed.algorithms.join": "",
    "torch.distributed.fsdp": "",
    "torch.distributed.optim": "",
    "torch.distributed.tensor.parallel": "",
    "perf_callbacks.loop": "",
    "accelerate.local_sgd": "accelerate hf local",
    "perf_callbacks.accelerate": "accelerate hf local",
    "transformers.trainer": "hf",
    "transformers.models.llama.modeling_llama": "hf",
    "perf_callbacks.transformers": "hf",
    "lightning": "lightning",
    "perf_callbacks.lightning": "lightning",
}
"""Modules that take long to import, each with the beginnings of the names of the set-ups that need it; "": all."""


def preload(setups):
    """Import what these set-ups need."""
    wanted = {setup.partition("_")[0] for setup in setups}
    for module, needed in MODULES.items():
        if not needed or wanted & {*needed.split()}:
            importlib.import_module(module)
