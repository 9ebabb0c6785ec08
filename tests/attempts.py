"""Attempts of one run: trainings that stop at a step, and go on from a checkpoint of an earlier attempt.

Each integration has one function: it trains until a step, and saves a checkpoint after every second step.
"""

import tiny
import tiny_lightning
import torch
from accelerated import an_accelerator, prepared, rows_of_tokens
from tiny import llama, records
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.records import codec
from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.journal_file import read
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback


class Stop(TrainerCallback):
    """Training ends after a step, as if it had been asked to."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step >= self.step


def transformers(directory, *, until, resume=None, measured=True, ours=None, rows=40, **arguments):
    arguments = {"max_steps": 12, "save_strategy": "steps", "save_steps": 2} | arguments
    callbacks = [ours or PerfCallback()] if measured else []
    arguments = tiny.training_arguments(directory, **arguments)
    trainer = tiny.trainer(arguments, *callbacks, Stop(until), train_dataset=tiny.Tokens(rows))
    trainer.train(resume_from_checkpoint=resume and str(directory / f"checkpoint-{resume}"))
    assert trainer.state.global_step == until
    return trainer


def lightning(
    directory, *others, until, resume=None, measured=True, ours=None, of="lightning", module="Automatic", **options
):
    kinds, many = tiny_lightning.tree(of), 2 if module == "Manual" else 1
    save = kinds.callbacks.ModelCheckpoint(
        dirpath=directory / "saved", every_n_train_steps=2 * many, save_top_k=-1, filename="{step}"
    )
    callbacks = [*([ours or kinds.PerfCallback()] if measured else []), *others, save]
    usual = {"enable_checkpointing": True, "max_steps": until * many}
    trainer = tiny_lightning.trainer(directory, *callbacks, of=of, **usual | options)
    checkpoint = resume and saved(directory, resume * many)
    trainer.fit(getattr(kinds, module)(), tiny_lightning.loader(40), ckpt_path=checkpoint)
    assert trainer.global_step == until * many
    return trainer


def saved(directory, step):
    """The checkpoint that Lightning saved at a step of its own."""
    (path,) = directory.glob(f"saved/step={step}.ckpt")
    return path


class Custom:
    """An object of the user's in the checkpoint."""

    def state_dict(self):
        return {"mine": 1}

    def load_state_dict(self, state):
        assert state == {"mine": 1}


def accelerate(directory, *, until, resume=None, measured=True, custom=False):
    accelerator = an_accelerator(directory)
    perf = attach(accelerator) if measured else None
    if custom:
        accelerator.register_for_checkpointing(Custom())
    done = resume or 0
    model, optimizer, loader, _ = prepared(accelerator, rows_of_tokens(4 * (until - done), batch_size=4))
    if resume:
        accelerator.load_state(str(directory / f"checkpoint-{resume}"))
    for step, batch in enumerate(loader, done + 1):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            accelerator.save_state(str(directory / f"checkpoint-{step}"))
    accelerator.end_training()
    return perf


def loop(directory, *, until, resume=None):
    model, done = llama(), resume or 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(tiny.Tokens(4 * (until - done)), batch_size=4)
    state = torch.load(directory / f"{resume}.pt", weights_only=True) if resume else None
    config = PerfConfig(output_dir=str(directory))
    with measure(model=model, optimizer=optimizer, loader=loader, config=config, resume=state) as perf:
        for step, batch in enumerate(perf.loader, done + 1):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 2 == 0:
                torch.save({**perf.state()}, directory / f"{step}.pt")
    return perf


def opened(directory):
    """The record that opens each attempt in the journal."""
    (*parts,) = codec.attempts(read(directory / "perf_callbacks" / "rank0.jsonl"))
    return [part[0].record for part in parts]


def numbers(directory):
    """The number of each attempt, and the step that it goes on from."""
    return [(run.attempt, run.step) for run in opened(directory)]


def totals(directory):
    """Samples and tokens of the whole run at the end of each attempt."""
    summaries = [records(directory, Summary, attempt=number) for number in range(len(opened(directory)))]
    return [(one.total_samples, one.total_tokens) for (one,) in summaries]
