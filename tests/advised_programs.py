"""Small programs of each integration, to which a remedy can be applied, and what is seen of their training."""

import contextlib
import functools
import gc
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from trainings import lightning_kit
from trainings.models import Tokens, llama, training_arguments
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.advice import observer
from perf_callbacks.lightning import PerfCallback as LightningCallback
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

QUIET = {"flops": "off", "stragglers": "off", "exchange": "off", "checklist": "off"}
VOCABULARY = 66  # no multiple of 8


@dataclass
class Change:
    """Changes of a program; the defaults are the program as it is."""

    arguments: dict = field(default_factory=dict)
    """By the name of a class or a function: keyword arguments that replace the program's."""
    statements: list = field(default_factory=list)
    """Functions that are called before the program makes anything."""
    on_model: list = field(default_factory=list)
    """Functions of the model, which return it."""
    environment: dict = field(default_factory=dict)
    steps: int = 3
    batch: int = 4
    every: int = 1
    """Number of steps from one call of the program's own code to the next."""
    spans_every: int = 3
    autocast: object = contextlib.nullcontext
    around: object = contextlib.nullcontext
    """Context of each micro-batch, of the model that the loop calls."""
    lengths: tuple = (16, 5, 16, 9)
    longest: bool = False
    """True: batches are as long as their longest sample."""
    cached: bool = False
    """True: the data set makes each sample once."""
    keeps: bool = True
    """True: the program keeps a tensor of each step."""
    collects: bool = True
    """True: the program calls `gc.collect` after each step."""
    copies: bool = True
    """True: the model's output is copied after each step."""
    fixed: bool = False
    """True: the shapes of the program's tensors don't depend on their values."""
    in_thread: bool = False
    """True: the program's own code runs in another thread."""

    taken: set = field(default_factory=set)
    """Names of which the program has asked for arguments."""

    def of(self, name, **usual):
        """Keyword arguments for a class."""
        self.taken.add(name)
        return usual | self.arguments.get(name, {})


class Ids(Tokens):
    """Samples of different lengths, without padding."""

    def __init__(self, rows, change):
        super().__init__(rows, change.lengths)
        self.made, self.cache = 0, {} if change.cached else None

    def __getitem__(self, index):
        if self.cache is not None and index in self.cache:
            return self.cache[index]
        self.made += 1
        item = self.sample(index)
        if self.cache is not None:
            self.cache[index] = item
        return item

    def __iter__(self):
        return map(self.__getitem__, range(len(self)))

    def sample(self, index):
        item = super().__getitem__(index)
        length = int(item["attention_mask"].sum())
        return {name: value[:length] for name, value in item.items()}


class Stream(IterableDataset):
    """Samples in an order of their own, which workers divide."""

    def __init__(self, rows=400):
        self.rows = rows

    def __iter__(self):
        worker = get_worker_info()
        first, apart = (0, 1) if worker is None else (worker.id, worker.num_workers)
        data = Tokens(self.rows)
        for index in range(first, self.rows, apart):
            yield data[index]


def collate(rows, width=16, pad_to_multiple_of=1):
    """Pad the rows of a batch to one width, or to the longest row."""
    longest = width or max([len(row["input_ids"]) for row in rows])
    longest = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    return {
        name: torch.stack([nn.functional.pad(row[name], (0, longest - len(row[name])), value=value) for row in rows])
        for name, value in fill.items()
    }


def a_model(change, **config):
    """The model of all programs, with what the program sees of it: in eager attention, unless it is changed."""
    model = llama(**{"attn_implementation": "eager", "vocab_size": VOCABULARY} | config | change.of("from_pretrained"))
    for function in change.on_model:
        changed = function(model)
        model = model if changed is None else changed
    return model


def a_loader(change, dataset=None, **options):
    dataset = Ids(8, change) if dataset is None else dataset
    of = change.of("DataLoader", batch_size=change.batch, **options)
    return DataLoader(dataset, collate_fn=functools.partial(collate, width=0 if change.longest else 16), **of)


def an_optimizer(change, parameters):
    name = next((one for one in change.arguments if one.startswith("torch.optim.")), "torch.optim.AdamW")
    return getattr(torch.optim, name.rpartition(".")[2])(parameters, **change.of(name, lr=0.01))


class Watch:
    """Keeps what can be seen of a training while it lasts."""

    def __init__(self, model, change):
        self.change, self.dtype, self.width, self.losses, self.steps = change, None, None, [], 0
        self.logs = self.evaluations = self.checkpoints = self.sanity = self.calls = self.collections = self.copies = 0
        self.kept, self.threads, self.shapes, self.output, self.gathered = [], set(), set(), None, False
        head = getattr(model, "lm_head", None) or model.model.lm_head
        head.register_forward_hook(self.look)

    def look(self, module, _inputs, output):
        if not module.training:
            return
        self.dtype, self.width, self.output = output.dtype, output.shape[1], output.detach()
        self.threads_used = torch.get_num_threads()
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        self.anomalies, self.precision = torch.is_anomaly_enabled(), torch.get_float32_matmul_precision()

    def own_code(self):
        """Code of the program that runs after steps, unless the change makes it rarer."""
        self.steps += 1
        if self.steps % self.change.every:
            return
        work = threading.Thread(target=self.work)
        work.start() if self.change.in_thread else self.work()
        work.join() if self.change.in_thread else None

    def work(self):
        """Read, copy, keep and collect."""
        change, output = self.change, self.output
        self.calls += 1
        self.threads.add(threading.current_thread() is threading.main_thread())
        positive = torch.where(output > 0, output, 0.0) if change.fixed else output[output > 0]
        self.shapes.add(positive.dim())
        self.losses.append(float(positive.sum()))
        self.copies += change.copies and output.mT.contiguous().numel() > 0
        self.kept += [output] * change.keeps
        self.collections += change.collects and gc.collect(0) >= 0


class OfTrainer(TrainerCallback):
    def __init__(self, watch):
        self.watch = watch

    def on_step_end(self, args, state, control, **_):
        self.watch.own_code()

    def on_evaluate(self, args, state, control, **_):
        self.watch.evaluations += 1

    def on_save(self, args, state, control, **_):
        self.watch.checkpoints += 1

    def on_log(self, args, state, control, logs=None, **_):
        self.watch.logs += "loss" in logs


class Own(Trainer):
    """A trainer that makes its loader and its optimizer itself."""

    def get_train_dataloader(self):
        return self.accelerator.prepare(a_loader(self.change))

    def create_optimizer(self, model=None):
        self.optimizer = an_optimizer(self.change, self.model.parameters())
        return self.optimizer


def trainer(directory, change, *, kind=Trainer, given=False, data=None, collator="own", config=None, **variant):
    """A Hugging Face trainer; `given` passes the optimizer, and `variant` are arguments of the program."""
    AcceleratorState._reset_state(reset_partial_state=True)
    usual = {
        "max_steps": change.steps, "per_device_train_batch_size": change.batch, "optim": "adamw_torch",
        "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3, "save_total_limit": 1,
    }  # fmt: skip
    arguments = training_arguments(directory, **usual | variant | change.of("TrainingArguments"))
    model = a_model(change, **config or {})
    watch = Watch(model, change)
    makers = {
        "own": functools.partial(collate, width=0 if change.longest else 16),
        "transformers": functools.partial(DataCollatorForLanguageModeling, tokenizer=Padding(), mlm=False),
    }
    collating = (
        makers["transformers"](**change.of("DataCollatorForLanguageModeling")) if collator != "own" else makers["own"]
    )
    optimizer = an_optimizer(change, model.parameters()) if given else None
    kind = type(kind.__name__, (kind,), {"change": change, "__module__": kind.__module__})
    of = kind(
        model=model, args=arguments, train_dataset=data or Ids(8, change), eval_dataset=Ids(4, Change()),
        data_collator=collating, optimizers=(optimizer, None),
        callbacks=[PerfCallback(PerfConfig(**QUIET)), OfTrainer(watch)],
    )  # fmt: skip
    with change.autocast():
        of.train()
    loader = of.callback_handler.train_dataloader
    handler = of.accelerator.ddp_handler
    return SimpleNamespace(
        **vars(watch), model=model, optimizer=of.optimizer, loader=loader, done=of.state.global_step,
        bucket=getattr(handler, "bucket_cap_mb", None), arguments=of.args,
    )  # fmt: skip


class Padding:
    """A tokenizer that only pads."""

    pad_token, pad_token_id, model_input_names, padding_side = "<pad>", 0, ["input_ids", "attention_mask"], "right"

    def save_pretrained(self, *_):
        """Save nothing."""

    def pad(self, rows, pad_to_multiple_of=None, **_):
        return collate(rows, width=0, pad_to_multiple_of=pad_to_multiple_of or 1)


def lightning(directory, change, *, clip=None, distributed=False, checkpoint=None, plateau=False, **variant):
    """A trainer of Lightning."""
    tree = lightning_kit.tree()

    class Module(tree.pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = a_model(change)

        def training_step(self, batch, _index):
            with change.around(self.trainer.model), change.autocast():
                loss = self.model(**batch).loss
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _index):
            watch.sanity += self.trainer.sanity_checking
            self.log("val_loss", self.model(**batch).loss)

        def on_train_batch_end(self, *_):
            watch.own_code()

        def on_validation_end(self):
            watch.evaluations += not self.trainer.sanity_checking

        def configure_optimizers(self):
            optimizer = an_optimizer(change, self.parameters())
            if not plateau:
                return optimizer
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            config = {"scheduler": scheduler, "monitor": "val_loss", **change.of("ReduceLROnPlateau")}
            return {"optimizer": optimizer, "lr_scheduler": config}

        def on_save_checkpoint(self, _checkpoint):
            watch.checkpoints += 1

    model = Module()
    watch = Watch(model, change)
    logger = tree.CSVLogger(directory)
    rows, logger.log_metrics = [], lambda metrics, step=None: rows.append(metrics)
    saving = tree.callbacks.ModelCheckpoint(**change.of("ModelCheckpoint", dirpath=directory, **checkpoint or {}))
    settings = change.of("Trainer", max_steps=change.steps, gradient_clip_val=clip, **variant)
    if distributed:
        settings["strategy"] = DDPStrategy(process_group_backend="gloo", **change.of("DDPStrategy"))
    running = lightning_kit.trainer(
        directory, LightningCallback(PerfConfig(**QUIET)), saving, logger=logger, enable_checkpointing=True, **settings
    )
    running.fit(model, a_loader(change), a_loader(change, Tokens(4)))
    return SimpleNamespace(
        **vars(watch) | {"logs": sum(["loss" in row for row in rows])}, model=model.model,
        optimizer=running.optimizers[0],
        loader=running.train_dataloader, done=running.global_step,
        bucket=getattr(running.strategy, "_ddp_kwargs", {}).get("bucket_cap_mb"),
    )  # fmt: skip


def accelerated(directory, change, *, precision=None, data=None):
    """A loop with Accelerate, which accumulates two micro-batches."""
    handlers = [DistributedDataParallelKwargs(**of)] if (of := change.of("DistributedDataParallelKwargs")) else []
    AcceleratorState._reset_state(reset_partial_state=True)
    options = change.of("Accelerator", mixed_precision=precision, gradient_accumulation_steps=2)
    accelerator = Accelerator(cpu=True, project_dir=str(directory), kwargs_handlers=handlers, **options)
    model = a_model(change)
    watch, compiled = Watch(getattr(model, "_orig_mod", model), change), model
    training = a_loader(change, data)
    model, optimizer, loader = accelerator.prepare(compiled, an_optimizer(change, compiled.parameters()), training)
    with attach(accelerator, PerfConfig(**QUIET)):
        while watch.steps < change.steps:
            for batch in loader:
                with accelerator.accumulate(model), change.around(accelerator), change.autocast():
                    accelerator.backward(model(**batch).loss)
                    optimizer.step()
                    optimizer.zero_grad()
                end_step(watch, change)
                if watch.steps == change.steps:
                    break
    return SimpleNamespace(
        **vars(watch), model=accelerator.unwrap_model(model), optimizer=optimizer, loader=loader, done=watch.steps,
        bucket=getattr(accelerator.ddp_handler, "bucket_cap_mb", None),
    )  # fmt: skip


def plain(directory, change, *, data=None, distributed=False):
    """A loop."""
    model = a_model(change)
    watch = Watch(getattr(model, "_orig_mod", model), change)
    called = DistributedDataParallel(model, **change.of("DistributedDataParallel")) if distributed else model
    optimizer, loader = an_optimizer(change, model.parameters()), a_loader(change, data)
    config = PerfConfig(**QUIET, output_dir=str(directory))
    with measure(model=called, optimizer=optimizer, loader=loader, config=config) as perf:
        while watch.steps < change.steps:
            for batch in perf.loader:
                with change.around(called), change.autocast():
                    called(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                end_step(watch, change)
                if watch.steps == change.steps:
                    break
    return SimpleNamespace(
        **vars(watch), model=model, optimizer=optimizer, loader=loader, done=watch.steps,
        bucket=getattr(called, "bucket_bytes_cap", 0) / 2**20,
    )  # fmt: skip


def end_step(watch, change):
    """Evaluate, save and log as a loop does."""
    watch.own_code()
    watch.logs += watch.steps % change.every == 0
    if watch.steps % change.spans_every == 0:
        watch.evaluations += 1
        watch.checkpoints += 1


class Seen(observer.Advice):
    """Keeps the facts of each fit."""

    fits: list = []  # noqa: RUF012 emptied by each training

    def __init__(self, recorder, facts, since):
        self.fits.append((facts, recorder))
        super().__init__(recorder, facts, since)


PROGRAMS = {
    "Trainer": ("transformers", trainer),
    "Trainer that evaluates after epochs": (
        "transformers",
        functools.partial(
            trainer, eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, collator="transformers",
            activation_checkpointing=True,
        ),
    ),
    "Trainer with a loader and an optimizer of its own": (
        "transformers",
        functools.partial(trainer, kind=Own, bf16=True, eval_steps=2, save_steps=4, load_best_model_at_end=True),
    ),
    "Trainer with a given optimizer": (
        "transformers",
        functools.partial(trainer, given=True, data=Stream(), save_strategy="best", metric_for_best_model="loss"),
    ),
    "Lightning": ("lightning", lightning),
    "Lightning that validates within epochs": (
        "lightning",
        functools.partial(
            lightning, val_check_interval=1, accumulate_grad_batches=2, clip=1.0, precision="bf16-mixed",
            checkpoint={"every_n_train_steps": 1}, num_sanity_val_steps=0,
        ),
    ),
    "Lightning with ReduceLROnPlateau": (
        "lightning", functools.partial(lightning, plateau=True, detect_anomaly=True, deterministic=True),
    ),
    "Accelerate": ("accelerate", accelerated),
    "Accelerate in mixed precision": ("accelerate", functools.partial(accelerated, precision="bf16", data=Stream())),
    "loop": ("loop", plain),
    "loop over a stream": ("loop", functools.partial(plain, data=Stream())),
    "distributed loop": ("loop", functools.partial(plain, distributed=True)),
    "distributed Lightning": ("lightning", functools.partial(lightning, distributed=True)),
}  # fmt: skip
"""Programs by name: the integration, and the function that trains."""
