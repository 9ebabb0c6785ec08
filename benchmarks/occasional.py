"""What is done now and then costs, where it is done: between steps of training, with caches that these have filled.

    python benchmarks/occasional.py [--steps 4000] [--doors loop transformers lightning]

Each line is a kind of work: how often it was done, its 10th percentile and its median in microseconds, and what it
comes to for each step of the run. Of two kinds one within the other, each has its own time only. The end of a step in
which something is due includes looks at memory and at trained parameters, and the beginning and end of a FLOP count.
The loops are those of `overhead.py`, with a row every 50 steps. Collections are those by the schedule of the callback.
"""

import argparse
import contextlib
import functools
import gc
import importlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

import torch
from network import ROWS_EVERY, Classifier, Rows

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.engine.engine import Engine
from perf_callbacks.kernel.fit.recorder import Recorder

DOORS = ("loop", "transformers", "lightning")


class Stopwatch:
    """Seconds of each piece of work, by its kind, without the pieces of other kinds within it."""

    def __init__(self):
        self.found = defaultdict(list)
        self._within = [0.0]
        self._began = []

    def start(self):
        self._within.append(0.0)
        self._began.append(time.perf_counter())

    def stop(self, kind):
        seconds = time.perf_counter() - self._began.pop()
        own = seconds - self._within.pop()
        self._within[-1] += seconds
        if kind is not None:
            self.found[kind].append(own)

    def calls(self, owner, name, kind):
        """Time each call of a method."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def call(*args, **kwargs):
            self.start()
            try:
                return inner(*args, **kwargs)
            finally:
                self.stop(kind)

        setattr(owner, name, call)

    def collections(self):
        """Time each garbage collection. Automatic ones, of the imports mostly, are not told."""

        def heard(phase, info):
            if phase == "start":
                self.start()
            else:
                kind = "a full collection" if info["generation"] == 2 else "a young collection"
                self.stop(None if gc.get_threshold()[0] else kind)

        gc.callbacks.append(heard)


def loop(steps, config):
    from doors.loop import Loop

    from perf_callbacks.loop import measure

    training = Loop()
    with measure(model=training.model, optimizer=training.optimizer, loader=training.batches, config=config) as perf:
        for step, batch in zip(range(1, steps + 1), perf.loader, strict=False):
            training.step(batch)
            if step % ROWS_EVERY == 0:
                perf.row()


def transformers(steps, config):
    from transformers import Trainer, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    arguments = TrainingArguments(
        output_dir=config.output_dir, max_steps=steps, per_device_train_batch_size=4, logging_steps=ROWS_EVERY,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(Classifier(), arguments, train_dataset=Rows(), callbacks=[PerfCallback(config)]).train()


def lightning(steps, config):
    from doors.lightning import Module
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import CSVLogger
    from torch.utils.data import DataLoader

    from perf_callbacks.lightning import PerfCallback

    trainer = Trainer(
        max_steps=steps, accelerator="cpu", logger=CSVLogger(config.output_dir), log_every_n_steps=ROWS_EVERY,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[PerfCallback(config)],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Rows(), batch_size=4))


def measured(door, steps):
    """Seconds of each piece of work, by its kind."""
    watch = Stopwatch()
    watch.calls(Engine, "flush", "256 steps, or those of a second")
    watch.calls(Engine, "row", "a row")
    watch.calls(Recorder, "_end_due_step", "the end of a step in which something is due, without these")
    if door == "lightning":
        loggers = importlib.import_module("lightning.pytorch.loggers")
        watch.calls(loggers.CSVLogger, "log_metrics", "a row in Lightning's CSVLogger")
    watch.collections()
    with tempfile.TemporaryDirectory() as directory:
        globals()[door](steps, PerfConfig(output_dir=directory))
    return watch.found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=DOORS)
    options = parser.parse_args()
    if len(options.doors) > 1:
        print(
            "| loop | work | times | quickest tenth | median | for each step |\n|---|---|---|---|---|---|", flush=True
        )
        for door in options.doors:
            subprocess.run([sys.executable, __file__, "--steps", str(options.steps), "--doors", door], check=True)
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable()
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    (door,) = options.doors
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(Path(os.devnull).open("w")):
        found = measured(door, options.steps)
    for kind, seconds in found.items():
        ordered = sorted(1e6 * each for each in seconds)
        tenth, median = ordered[len(ordered) // 10], ordered[len(ordered) // 2]
        each = sum(ordered) / options.steps
        print(f"| {door} | {kind} | {len(ordered)} | {tenth:.0f} | {median:.0f} | {each:.1f} |", flush=True)


if __name__ == "__main__":
    main()
