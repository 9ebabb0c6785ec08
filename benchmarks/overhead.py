"""What measuring costs, in microseconds per optimizer step, beside what others cost.

Within one process and one training run, variants take turns every 136 steps: nothing, nothing again (the A/A control),
an empty callback, ours, others. A block's figures are its quiet step (the 10th percentile by the clock, which other
work on the machine disturbs least), and its mean step in CPU time, in which what is done every 64 steps is seen too;
both are paired with the block of nothing in the same cycle. Printed are medians of the differences with 95 % bootstrap
intervals. Each block of ours is a fit of its own, begun and ended outside of what is timed.

Others take part where they are installed: Lightning's ThroughputMonitor, mfu-tracker's callback. Megatron's timers are
re-stated here: three of them, started and stopped around forward, backward and optimizer.

    python benchmarks/overhead.py --cycles 40 --doors loop transformers lightning accelerate
"""

import argparse
import contextlib
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from turns import NONE, Turns

from perf_callbacks import PerfConfig

ROWS_EVERY = 50


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(64, 32), nn.Flatten(), nn.Linear(256, 16))


class Rows(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return {"input_ids": torch.zeros(8, dtype=torch.long), "labels": torch.tensor(index % 16)}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, input_ids, labels):
        return {"loss": nn.functional.cross_entropy(self.network(input_ids), labels)}


class MegatronTimers:
    """As Megatron's at level 1 without barriers: start, stop, and a sum."""

    def __init__(self) -> None:
        self.elapsed = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self.began: dict[str, float] = {}

    def start(self, name: str) -> None:
        self.began[name] = time.time()

    def stop(self, name: str) -> None:
        self.elapsed[name] += time.time() - self.began.pop(name)


class NoTimers:
    def start(self, name: str) -> None: ...

    def stop(self, name: str) -> None: ...


def loop(cycles: int, directory: str) -> Turns:
    from perf_callbacks.loop import measure

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = {"input_ids": torch.randint(0, 64, (4, 8)), "labels": torch.randint(0, 16, (4,))}
    state = {"timers": None, "stack": contextlib.ExitStack(), "loader": None}

    def ours() -> None:
        perf = measure(model=model, optimizer=optimizer, loader=batches, config=PerfConfig(output_dir=directory))
        state["loader"] = iter(state["stack"].enter_context(perf).loader)

    def batches_again() -> None:
        state["stack"].close()
        state["loader"] = iter(batches)

    class Batches:
        def __iter__(self):
            while True:
                yield batch

    batches = Batches()
    turns = Turns(
        {
            "nothing": NONE,
            "nothing again": NONE,
            "ours": (ours, batches_again),
            "Megatron's timers": (
                lambda: state.update(timers=MegatronTimers()),
                lambda: state.update(timers=None),
            ),
        },
        cycles,
    )
    state["loader"] = iter(batches)
    for _ in range(turns.steps):
        inputs, timers = next(state["loader"]), state["timers"]
        if timers is not None:
            timers.start("forward")
        loss = nn.functional.cross_entropy(model(inputs["input_ids"]), inputs["labels"])
        if timers is not None:
            timers.stop("forward")
            timers.start("backward")
        loss.backward()
        if timers is not None:
            timers.stop("backward")
            timers.start("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        if timers is not None:
            timers.stop("optimizer")
        turns.step()
    return turns


def transformers(cycles: int, directory: str) -> Turns:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    class Driver(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            self.at = args, state, control
            turns.step()

    driver, mine = Driver(), PerfCallback(PerfConfig(output_dir=directory))

    def others(*callbacks) -> None:
        handler = trainer.callback_handler
        kept = [one for one in handler.callbacks if type(one) not in {PerfCallback, TrainerCallback, *peers}]
        handler.callbacks = [*callbacks, *kept]

    def on() -> None:
        others(mine)
        mine.begin(driver.at[0], driver.at[1], trainer)

    def off() -> None:
        mine.on_train_end(*driver.at)
        others()

    peers = {}
    with contextlib.suppress(Exception):
        from mfu_tracker.integrations.huggingface import MFUCallback  # needs CUDA to do anything

        if torch.cuda.is_available():
            peers[MFUCallback] = "mfu-tracker"
    turns = Turns(
        {
            "nothing": NONE,
            "nothing again": NONE,
            "an empty callback": (lambda: others(TrainerCallback()), others),
            "ours": (on, off),
            **{name: ((lambda peer=peer: others(peer())), others) for peer, name in peers.items()},
        },
        cycles,
    )
    arguments = TrainingArguments(
        output_dir=directory,
        max_steps=turns.steps,
        per_device_train_batch_size=4,
        logging_steps=ROWS_EVERY,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Rows(), callbacks=[driver])
    trainer.train()
    return turns


def lightning(cycles: int, directory: str) -> Turns:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ThroughputMonitor
    from lightning.pytorch.loggers import CSVLogger

    from perf_callbacks.lightning import PerfCallback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Classifier()
            self.flops_per_batch = 1000

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Driver(Callback):
        def on_train_batch_end(self, trainer, module, *_):
            self.at = trainer, module
            turns.step()

    driver, mine, found = Driver(), PerfCallback(PerfConfig(output_dir=directory)), {}

    def others(*callbacks) -> None:
        trainer.callbacks = [*callbacks, driver]

    def on() -> None:
        others(mine)
        mine.begin(trainer)

    def off() -> None:
        mine.on_train_end(*driver.at)
        others()

    def monitor() -> None:
        found["monitor"] = ThroughputMonitor(batch_size_fn=lambda batch: len(batch["labels"]))
        found["monitor"].setup(trainer, driver.at[1], "fit")
        found["monitor"].on_train_start(*driver.at)
        others(found["monitor"])

    turns = Turns(
        {
            "nothing": NONE,
            "nothing again": NONE,
            "an empty callback": (lambda: others(Callback()), others),
            "ours": (on, off),
            "ThroughputMonitor": (monitor, others),
        },
        cycles,
    )
    trainer = Trainer(
        max_steps=turns.steps,
        accelerator="cpu",
        logger=CSVLogger(directory),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=ROWS_EVERY,
        callbacks=[driver],
    )
    trainer.fit(Module(), DataLoader(Rows(), batch_size=4))
    return turns


def accelerate(cycles: int, directory: str) -> Turns:
    from accelerate import Accelerator

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator(cpu=True, project_dir=directory)
    model = Classifier()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-3), DataLoader(Rows(), batch_size=4)
    )
    attached = contextlib.ExitStack()
    turns = Turns(
        {
            "nothing": NONE,
            "nothing again": NONE,
            "ours": (lambda: attached.enter_context(attach(accelerator)), attached.close),
        },
        cycles,
    )
    model.train()
    done = 0
    while done < turns.steps:  # a loader is measured from its next iteration on
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            turns.step()
            if not done % (136):
                break
    return turns


DOORS = {"loop": loop, "transformers": transformers, "lightning": lightning, "accelerate": accelerate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=list(DOORS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for name in arguments.doors:
        with tempfile.TemporaryDirectory() as directory:
            with contextlib.redirect_stdout(None), contextlib.redirect_stderr(Path(os.devnull).open("w")):
                turns = DOORS[name](arguments.cycles, directory)
            turns.report(name)


if __name__ == "__main__":
    main()
