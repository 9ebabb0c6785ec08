"""One short training through each integration; the caller hears of each step."""

from types import SimpleNamespace

import tiny
import tiny_lightning
import torch
from accelerated import an_accelerator
from tiny import Tokens, llama
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

STEPS = 8


class Looked(Dataset):
    """Rows of another dataset; somebody is told of each one."""

    def __init__(self, rows, look):
        self.rows, self.look = rows, look

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.look()
        return self.rows[index]


def ran(summary, model, losses):
    """What came of it, in figures that can be compared."""
    return SimpleNamespace(
        summary=summary, losses=losses, weights=[weight.detach().clone() for weight in model.parameters()]
    )


def evaluate(model, look):
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(Tokens(1)):
            model(**batch)
            look()
    model.train()


def loop(directory, after_step, *, steps=STEPS, every=None, look=lambda: None, resume=False, **config):
    """`every` so many steps it evaluates, of which `look` is told, and saves a checkpoint, from which it may resume."""
    saved = directory / "checkpoint.pt"
    model, losses = llama(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = torch.load(saved) if resume else {}
    if resume:
        model.load_state_dict(found["model"])
    loader = DataLoader(Tokens(steps), batch_size=1)
    config = PerfConfig(output_dir=str(directory), **config)
    with measure(model=model, optimizer=optimizer, loader=loader, config=config, resume=found.get("perf")) as perf:
        for step, batch in enumerate(perf.loader, 1 + found.get("step", 0)):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            after_step(step)
            if every and step % every == 0:
                evaluate(model, look)
                with perf.checkpoint():
                    torch.save({"model": model.state_dict(), "perf": perf.state(), "step": step}, saved)
            if step == steps:
                break
    return ran(perf.summary, model, losses)


def accelerator(directory, after_step, *, steps=STEPS, every=None, look=lambda: None, resume=False, **config):
    ours = an_accelerator(directory)
    losses = []
    with attach(ours, PerfConfig(**config)) as perf:
        model = llama()
        model, optimizer, loader = ours.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Tokens(steps), batch_size=1)
        )
        if resume:
            ours.load_state(str(directory / "state"))
        done = perf.state()["step"] if resume else 0
        for step, batch in enumerate(loader, 1 + done):
            loss = model(**batch).loss
            ours.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            after_step(step)
            if every and step % every == 0:
                evaluate(model, look)
                ours.save_state(str(directory / "state"))
            if step == steps:
                break
    return ran(perf.summary, model, losses)


class Telling(TrainerCallback):
    def __init__(self, after_step):
        self.after_step = after_step

    def on_log(self, args, state, control, **_):
        if state.global_step and "loss" in state.log_history[-1]:
            self.after_step(state.global_step)


def trainer(directory, after_step, *, steps=STEPS, every=None, look=lambda: None, resume=False, **config):
    callback = PerfCallback(PerfConfig(**config))
    often = {"eval_strategy": "steps", "eval_steps": every, "save_strategy": "steps", "save_steps": every}
    arguments = tiny.training_arguments(directory, max_steps=steps, **(often if every else {}))
    rows = Looked(Tokens(1), look)
    ours = tiny.trainer(arguments, callback, Telling(after_step), eval_dataset=rows)
    ours.train(resume_from_checkpoint=resume or None)
    return ran(callback.summary, ours.model, [line["loss"] for line in ours.state.log_history if "loss" in line])


def lightning(of):
    def through(directory, after_step, *, steps=STEPS, every=None, look=lambda: None, resume=False, **config):
        kinds, losses, options = tiny_lightning.tree(of), [], {}

        class Told(kinds.Callback):
            def on_train_start(self, trainer, *_):
                connector = trainer._logger_connector
                inner, self.done = connector.on_batch_end, trainer.global_step

                def on_batch_end():  # a step of the callback ends with the batch, after the hooks of all callbacks
                    inner()
                    if trainer.training and trainer.global_step > self.done:
                        self.done = trainer.global_step
                        after_step(self.done)

                connector.on_batch_end = on_batch_end

            def on_train_batch_end(self, trainer, module, outputs, *_):
                losses.append(outputs["loss"].item())

        callback = kinds.PerfCallback(PerfConfig(**config))
        others = [Told()]
        if every:
            others.append(kinds.callbacks.ModelCheckpoint(directory, every_n_train_steps=every, save_last=True))
            options = {"val_check_interval": every, "check_val_every_n_epoch": None, "enable_checkpointing": True}
        ours = tiny_lightning.trainer(
            directory, callback, *others, of=of, max_steps=steps, num_sanity_val_steps=0, **options
        )
        model = kinds.Automatic()
        validation = DataLoader(Looked(tiny_lightning.Numbers(1), look)) if every else None
        last = str(directory / "last.ckpt") if resume else None
        ours.fit(model, tiny_lightning.loader(), validation, ckpt_path=last)
        return ran(callback.summary, model, losses)

    return through


DOORS = {
    "transformers": trainer,
    "loop": loop,
    "accelerate": accelerator,
    "lightning": lightning("lightning"),
    "pytorch_lightning": lightning("pytorch_lightning"),
}
