"""Real trainings on a CPU, each slowed down in one way, for `hidden_faults.py` and `promises.py`."""

import contextlib
import gc
import io
import json
import logging
import os
import random
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig

STEPS, BATCH, LENGTH, SMALL_TENSORS = 600, 4, 64, 400
CAUSES = ("data", "host", "recompute", "evaluation", "sync", "optimizer", "gc")
DOORS = ("loop", "transformers", "lightning", "accelerate")
WORK_SECONDS = 0.015


def spin(seconds):
    """Work in Python, as a tokenizer or a metric does."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(100))


class Rows(Dataset):
    def __init__(self, seed, seconds):
        self.seed, self.seconds = seed, seconds

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        spin(self.seconds)
        ids = torch.randint(0, 512, (LENGTH,), generator=torch.Generator().manual_seed(self.seed + index))
        return {"input_ids": ids, "labels": ids}


class Run:
    """One training, slowed down by one cause or by none."""

    def __init__(self, cause, seed, folder, *, workers=0):
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(seed)
        self.cause, self.seed, self.folder = cause, seed, folder
        self.config = PerfConfig(output_dir=str(folder), measure_peak="off")
        heavy = cause == "recompute"
        sizes = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 3}
        self.model = LlamaForCausalLM(
            LlamaConfig(**sizes, num_attention_heads=4, attn_implementation="eager" if heavy else "sdpa")
        )
        if heavy:
            self.model.gradient_checkpointing_enable()
        if cause == "optimizer":
            self.model.small = nn.ParameterList([nn.Parameter(torch.zeros(8)) for _ in range(SMALL_TENSORS)])
            self.model.register_forward_hook(self._use_small)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=cause != "optimizer")
        self.rows = Rows(seed, WORK_SECONDS / BATCH if cause == "data" else 0)
        self.workers = workers
        self.evaluated_every = 3
        self.heap = [[number] for number in range(60_000)] if cause == "gc" else []
        self.log = (folder / "log.jsonl").open("w")

    @staticmethod
    def _use_small(model, _args, out):
        out.loss = out.loss + 0 * torch.cat(list(model.small)).sum()

    @property
    def loader(self):
        return DataLoader(self.rows, batch_size=BATCH, num_workers=self.workers)

    def after_step(self, loss):
        """Do what the cause does once per step."""
        if self.cause == "host":
            spin(WORK_SECONDS * random.uniform(0.8, 1.2))
        if self.cause == "gc":
            for _ in range(1000):
                cycle = []
                cycle.append(cycle)
            gc.collect()
        if self.cause == "sync":
            norms = {name: parameter.norm().item() for name, parameter in self.model.named_parameters()}
            for _ in range(4):
                self.log.write(json.dumps({"loss": float(loss), **norms}) + "\n")
                self.log.flush()
                os.fsync(self.log.fileno())

    def evaluate(self):
        with torch.no_grad():
            for start in range(0, 3 * BATCH, BATCH):
                ids = torch.stack([self.rows[start + row]["input_ids"] for row in range(BATCH)])
                self.model(input_ids=ids, labels=ids)


def loop(run):
    from perf_callbacks.loop import measure

    measured = measure(model=run.model, optimizer=run.optimizer, loader=run.loader, config=run.config)
    with measured as perf:
        for step, batch in enumerate(perf.loader):
            loss = run.model(**batch).loss
            loss.backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            run.after_step(loss.detach())
            if run.cause == "evaluation" and (step + 1) % run.evaluated_every == 0:
                with perf.evaluation():
                    run.evaluate()
    return lambda: perf.summary


def accelerate(run):
    from accelerate import Accelerator

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator(cpu=True)
    attached = attach(accelerator, run.config)
    model, optimizer, loader = accelerator.prepare(run.model, run.optimizer, run.loader)
    model.train()
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        run.after_step(loss.detach())
        if run.cause == "evaluation" and (step + 1) % run.evaluated_every == 0:
            model.eval()
            run.evaluate()
            model.train()
    accelerator.end_training()
    return lambda: attached.summary


def transformers(run):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    class AfterStep(TrainerCallback):
        def on_step_end(self, *_args, **_kwargs):
            if run.cause in {"host", "gc"}:
                run.after_step(None)

        def on_log(self, _args, _state, _control, logs=None, **_kwargs):
            if run.cause == "sync":
                run.after_step(logs.get("loss", 0.0))

    evaluated = torch.utils.data.Subset(run.rows, range(4 * BATCH))
    arguments = TrainingArguments(
        output_dir=str(run.folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        dataloader_num_workers=run.workers,
        dataloader_pin_memory=False,
        gradient_checkpointing=run.cause == "recompute",
        logging_steps=1 if run.cause == "sync" else 20,
        eval_strategy="steps" if run.cause == "evaluation" else "no",
        eval_steps=run.evaluated_every,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    callback = PerfCallback(run.config)
    trainer = Trainer(
        model=run.model,
        args=arguments,
        train_dataset=run.rows,
        eval_dataset=evaluated,
        optimizers=(run.optimizer, None),
        callbacks=[callback, AfterStep()],
    )
    trainer.train()
    return lambda: callback.summary


def lightning(run):
    from lightning.pytorch import Callback, LightningModule, Trainer

    from perf_callbacks.lightning import PerfCallback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = run.model

        def training_step(self, batch, _index):
            return self.model(**batch).loss

        def validation_step(self, batch, _index):
            self.model(**batch)

        def configure_optimizers(self):
            return run.optimizer

    class AfterStep(Callback):
        def on_train_batch_end(self, _trainer, _module, outputs, *_):
            run.after_step(outputs["loss"])

    callback = PerfCallback(run.config)
    evaluating = run.cause == "evaluation"
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=4 if evaluating else 0,
        val_check_interval=run.evaluated_every if evaluating else None,
        callbacks=[callback, AfterStep()],
    )
    evaluated = DataLoader(run.rows, batch_size=BATCH) if evaluating else None
    module, loader = Module(), run.loader
    trainer.fit(module, loader, evaluated)
    return lambda: callback.summary


TRAIN = {"loop": loop, "accelerate": accelerate, "transformers": transformers, "lightning": lightning}


def train(door, cause, seed, **options):
    """Train, and return the summary and what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(cause, seed, Path(folder), **options)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            summary = TRAIN[door](run)
        run.log.close()
        card = printed.getvalue()
        return summary(), card[card.rfind("perf_callbacks: ") :]


def prepare(doors=DOORS):
    """Make the process ready: one thread, no warnings, and one fit of each integration."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    for door in doors:  # what a first fit imports is not the cause of anything
        train(door, "", 99)
