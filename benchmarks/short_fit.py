"""What a short Lightning fit costs with the checklist's `gc` item, and without it.

    python benchmarks/short_fit.py [--rounds 12]

Fits of 4 and of 400 steps of a tiny module in a single process, with Lightning, its imports and 300,000 other objects
alive. Ways take turns in random order; of each the median and the least of its rounds is printed, in milliseconds per
fit. "again" is the same as "none" (no callback): how far two equal ways lie apart.
"""

import argparse
import contextlib
import gc
import io
import logging
import random
import statistics
import tempfile
import time
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from perf_callbacks import PerfConfig
from perf_callbacks.lightning import PerfCallback

WAYS = {
    "none": None,
    "again": None,
    "gc skipped": {"skip": "gc"},
    "gc observed": {"gc": "observe"},
    "gc off": {"gc": "off"},
    "gc sync": {},
}


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(32, 2)

    def training_step(self, batch, _index):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(settings, steps):
    loader = DataLoader(torch.ones(2 * steps, 32), batch_size=2)
    with tempfile.TemporaryDirectory() as directory:
        callbacks = []
        if settings is not None:
            config = PerfConfig(output_dir=directory, measure_peak="off", peak_tflops="1", **settings)
            callbacks.append(PerfCallback(config))
        trainer = Trainer(
            max_epochs=1,
            default_root_dir=directory,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        module = Module()
        began = time.perf_counter()
        trainer.fit(module, loader)
        return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    alive = [[number] for number in range(300_000)]
    for steps in (4, 400):
        found = {way: [] for way in WAYS}
        for number in range(rounds + 1):
            for way in random.sample([*WAYS], len(WAYS)):
                gc.collect()
                with contextlib.redirect_stdout(io.StringIO()):
                    seconds = fit(WAYS[way], steps)
                if number:  # the first round is for warming up
                    found[way].append(seconds * 1e3)
        print(f"fit of {steps} steps" + " " * 8 + "median      least   [ms]")
        for way, times in found.items():
            print(f"  {way:<18}{statistics.median(times):10.1f} {min(times):10.1f}")
    del alive


if __name__ == "__main__":
    main()
