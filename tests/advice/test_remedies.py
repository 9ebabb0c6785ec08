"""Each call that a remedy names is legal in the program it is said of, and has an effect there: it is applied."""

import ast
import contextlib
import functools
import re
import runpy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from advised import findings
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset
from trainings import lightning_kit
from trainings.models import Tokens, llama, training_arguments
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback

from perf_callbacks import PerfConfig
from perf_callbacks.accelerate import attach
from perf_callbacks.advice import observer
from perf_callbacks.commands import COMMANDS
from perf_callbacks.kernel.settings.resolution import resolve
from perf_callbacks.lightning import PerfCallback as LightningCallback
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

CASES = runpy.run_path(str(Path(__file__).with_name("test_wordings.py")))["CASES"]
WORDINGS = Path(__file__).with_name("wordings.txt").read_text(encoding="utf-8")
CONFIG = PerfConfig(flops="off", stragglers="off", exchange="off", checklist="off")

pytestmark = pytest.mark.filterwarnings("ignore")  # frameworks warn of programs like these

CALL = re.compile(r"([A-Za-z_][\w.]*)\((?:\.\.\., |model, )?([^()]*)\)")
"""A call in a sentence: its name, and its arguments without those that the program has anyway."""

EXPLAINS = re.compile(
    r"^(loss|torch\.utils|work\.wait|measure|accelerator\.prepare|gc\.|torch\.\w+\.synchronize|tensor\.to|torch\.where)"
)
"""Calls in a sentence that only explain it."""

NOT_HERE = re.compile(r'mixed_precision="fp16|fp16=True|"16-mixed|torch\.float16|model_wrapped')
"""Sentences that need a GPU or a job of several ranks."""


def calls(sentence):
    """The calls that a remedy asks for, each with its keyword arguments and its others."""
    for name, text in CALL.findall(sentence):
        if not EXPLAINS.match(name):
            call = ast.parse(f"f({text})", mode="eval").body
            constants = [ast.literal_eval(value) for value in call.args if isinstance(value, ast.Constant)]
            yield name, {pair.arg: ast.literal_eval(pair.value) for pair in call.keywords}, constants


@dataclass
class Change:
    """Changes of a program; the defaults are the program as it is."""

    arguments: dict = field(default_factory=dict)
    """By the name of a class or a function: keyword arguments that replace the program's."""
    statements: list = field(default_factory=list)
    """Functions that are called before the program makes anything."""
    on_model: list = field(default_factory=list)
    """Functions of the model, which return it or change it."""
    steps: int = 3
    autocast: object = contextlib.nullcontext
    around: object = contextlib.nullcontext
    """Context of each micro-batch, of the model that the loop calls."""
    taken: set = field(default_factory=set)
    """Names of which the program has asked for arguments."""

    def of(self, name, **usual):
        """Keyword arguments for a class."""
        self.taken.add(name)
        return usual | self.arguments.get(name, {})

    def apply(self, sentence):
        """Apply each call in a sentence: as arguments of a class, before the training, or to the model."""
        for name, keywords, others in calls(sentence):
            if name.startswith("torch.") and callable(setting := STATEMENTS.get(name)):
                self.statements.append(functools.partial(setting, *others, **keywords))
            elif name.endswith("no_sync"):
                self.around = functools.partial(no_sync, name=name)
            elif name.startswith("model."):
                self.on_model.append(lambda model, name=name, of=keywords: getattr(model, name[6:])(**of) and None)
            elif name == "torch.compile" and "dynamic" in keywords:  # the program compiles its model already
                self.on_model.append(lambda model, of=keywords: model.compile(**of))
            elif name == "torch.compile":
                self.on_model.append(lambda model, of=keywords: torch.compile(model, **of))
            elif name == "torch.autocast":
                self.autocast = functools.partial(torch.autocast, "cpu", torch.bfloat16)
            else:
                workers = {"dataloader_prefetch_factor", "dataloader_persistent_workers"} & {*keywords}
                more = {"dataloader_num_workers": 2} if workers else {}  # both are advised with workers
                self.arguments.setdefault(name, {}).update(keywords, **more)
        if frequency := re.search(r"frequency=(\d+) in", sentence):
            self.arguments["ReduceLROnPlateau"] = {"frequency": int(frequency[1])}
        if re.search(r"(eval|save)_steps|val_check|check_val|every_n", sentence):
            self.steps = 33


STATEMENTS = {
    "torch.set_float32_matmul_precision": torch.set_float32_matmul_precision,
    "torch.use_deterministic_algorithms": torch.use_deterministic_algorithms,
    "torch.autograd.set_detect_anomaly": torch.autograd.set_detect_anomaly,
    "torch.set_num_threads": torch.set_num_threads,
}


def no_sync(owner, name):
    words = ["model"] * name.startswith("accelerator")
    return owner.no_sync(*words) if hasattr(owner, "no_sync") else contextlib.nullcontext()


class Ids(Tokens):
    """Samples of different lengths, without padding."""

    def __init__(self, rows):
        super().__init__(rows, (16, 5, 16, 9))

    def __getitem__(self, index):
        item = super().__getitem__(index)
        length = int(item["attention_mask"].sum())
        return {name: value[:length] for name, value in item.items()}


class Stream(IterableDataset):
    """Samples in an order of their own."""

    def __iter__(self):
        return iter([Tokens(400)[index] for index in range(400)])


def collate(rows, width=16, pad_to_multiple_of=1):
    """Pad the rows of a batch to one width, or to the longest row."""
    longest = width or max([len(row["input_ids"]) for row in rows])
    longest = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    pad = torch.nn.functional.pad
    return {
        name: torch.stack([pad(row[name], (0, longest - len(row[name])), value=value) for row in rows])
        for name, value in fill.items()
    }


class Padding:
    """A tokenizer that only pads."""

    pad_token, pad_token_id, model_input_names, padding_side = "<pad>", 0, ["input_ids", "attention_mask"], "right"

    def save_pretrained(self, *_):
        """Save nothing."""

    def pad(self, rows, pad_to_multiple_of=None, **_):
        return collate(rows, width=0, pad_to_multiple_of=pad_to_multiple_of or 1)


def a_model(change):
    """The model of all programs: in eager attention, and with a vocabulary that is no multiple of 8."""
    model = llama(**{"attn_implementation": "eager", "vocab_size": 66} | change.of("from_pretrained"))
    for function in change.on_model:
        changed = function(model)
        model = model if changed is None else changed
    return model


def a_loader(change, dataset=None):
    return DataLoader(
        Ids(8) if dataset is None else dataset, collate_fn=collate, **change.of("DataLoader", batch_size=4)
    )


def an_optimizer(change, parameters):
    name = next((name for name in change.arguments if name.startswith("torch.optim.")), "torch.optim.AdamW")
    return getattr(torch.optim, name.rpartition(".")[2])(parameters, **change.of(name, lr=0.01))


class Watch:
    """Keeps what can be seen of a training while it lasts."""

    def __init__(self, model):
        self.dtype, self.width = None, None
        self.logs = self.evaluations = self.checkpoints = self.sanity = 0
        head = getattr(model, "lm_head", None) or model.model.lm_head
        head.register_forward_hook(self.look)

    def look(self, module, _inputs, output):
        if module.training:
            self.dtype, self.width = output.dtype, output.shape[1]
            self.deterministic = torch.are_deterministic_algorithms_enabled()
            self.anomalies = torch.is_anomaly_enabled()


class TrainerWatch(TrainerCallback):
    def __init__(self, watch):
        self.watch = watch

    def on_evaluate(self, args, state, control, **_):
        self.watch.evaluations += 1

    def on_save(self, args, state, control, **_):
        self.watch.checkpoints += 1

    def on_log(self, args, state, control, logs=None, **_):
        self.watch.logs += "loss" in logs


def trainer(directory, change, *, own=False, given=False, data=None, collator="own", **variant):
    """A Hugging Face trainer; `own` makes loader and optimizer itself, `given` passes the optimizer."""

    class Kind(Trainer):
        if own:

            def get_train_dataloader(self):
                return self.accelerator.prepare(a_loader(change))

            def create_optimizer(self, model=None):
                self.optimizer = an_optimizer(change, self.model.parameters())
                return self.optimizer

    AcceleratorState._reset_state(reset_partial_state=True)
    usual = {
        "max_steps": change.steps, "per_device_train_batch_size": 4, "optim": "adamw_torch", "eval_strategy": "steps",
        "eval_steps": 3, "save_strategy": "steps", "save_steps": 3, "save_total_limit": 1,
    }  # fmt: skip
    arguments = training_arguments(directory, **usual | variant | change.of("TrainingArguments"))
    model = a_model(change)
    watch = Watch(model)
    collating = collate
    if collator != "own":
        options = change.of("DataCollatorForLanguageModeling")
        collating = DataCollatorForLanguageModeling(tokenizer=Padding(), mlm=False, **options)
    running = (Kind if own else Trainer)(
        model=model, args=arguments, train_dataset=data or Ids(8), eval_dataset=Ids(4), data_collator=collating,
        optimizers=(an_optimizer(change, model.parameters()) if given else None, None),
        callbacks=[PerfCallback(CONFIG), TrainerWatch(watch)],
    )  # fmt: skip
    with change.autocast():
        running.train()
    return SimpleNamespace(
        **vars(watch), model=model, optimizer=running.optimizer, loader=running.callback_handler.train_dataloader,
        done=running.state.global_step, bucket=getattr(running.accelerator.ddp_handler, "bucket_cap_mb", None),
        arguments=running.args,
    )  # fmt: skip


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
    watch = Watch(model)
    logger = tree.CSVLogger(directory)
    rows, logger.log_metrics = [], lambda metrics, step=None: rows.append(metrics)
    saving = tree.callbacks.ModelCheckpoint(**change.of("ModelCheckpoint", dirpath=directory, **checkpoint or {}))
    settings = change.of("Trainer", max_steps=change.steps, gradient_clip_val=clip, **variant)
    if distributed:
        settings["strategy"] = DDPStrategy(process_group_backend="gloo", **change.of("DDPStrategy"))
    running = lightning_kit.trainer(
        directory, LightningCallback(CONFIG), saving, logger=logger, enable_checkpointing=True, **settings
    )
    running.fit(model, a_loader(change), a_loader(change, Tokens(4)))
    return SimpleNamespace(
        **vars(watch) | {"logs": sum(["loss" in row for row in rows])}, model=model.model,
        optimizer=running.optimizers[0], loader=running.train_dataloader, done=running.global_step,
        bucket=getattr(running.strategy, "_ddp_kwargs", {}).get("bucket_cap_mb"),
    )  # fmt: skip


def accelerated(directory, change, *, precision=None, data=None):
    """A loop with Accelerate, which accumulates two micro-batches."""
    handlers = [DistributedDataParallelKwargs(**of)] if (of := change.of("DistributedDataParallelKwargs")) else []
    AcceleratorState._reset_state(reset_partial_state=True)
    options = change.of("Accelerator", mixed_precision=precision, gradient_accumulation_steps=2)
    accelerator = Accelerator(cpu=True, project_dir=str(directory), kwargs_handlers=handlers, **options)
    raw = a_model(change)
    watch = Watch(getattr(raw, "_orig_mod", raw))
    model, optimizer, loader = accelerator.prepare(raw, an_optimizer(change, raw.parameters()), a_loader(change, data))
    with attach(accelerator, CONFIG):
        for _, batch in zip(range(2), loader, strict=False):
            with accelerator.accumulate(model), change.around(accelerator), change.autocast():
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
    return SimpleNamespace(
        **vars(watch), model=accelerator.unwrap_model(model), optimizer=optimizer, loader=loader,
        bucket=getattr(accelerator.ddp_handler, "bucket_cap_mb", None),
    )  # fmt: skip


def plain(directory, change, *, data=None, distributed=False):
    """A loop."""
    model = a_model(change)
    watch = Watch(getattr(model, "_orig_mod", model))
    called = DistributedDataParallel(model, **change.of("DistributedDataParallel")) if distributed else model
    optimizer, loader = an_optimizer(change, model.parameters()), a_loader(change, data)
    config = replace(CONFIG, output_dir=str(directory))
    with measure(model=called, optimizer=optimizer, loader=loader, config=config) as perf:
        for _, batch in zip(range(2), perf.loader, strict=False):
            with change.around(called), change.autocast():
                called(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    bucket = getattr(called, "bucket_bytes_cap", 0) / 2**20
    return SimpleNamespace(**vars(watch), model=model, optimizer=optimizer, loader=loader, bucket=bucket)


PROGRAMS = {
    "Trainer": ("transformers", trainer, {}),
    "Trainer that evaluates after epochs": (
        "transformers", trainer,
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True,
         "collator": "transformers", "activation_checkpointing": True},
    ),
    "Trainer with a loader and an optimizer of its own": (
        "transformers", trainer,
        {"own": True, "bf16": True, "eval_steps": 2, "save_steps": 4, "load_best_model_at_end": True},
    ),
    "Trainer with a given optimizer": (
        "transformers", trainer,
        {"given": True, "data": Stream(), "save_strategy": "best", "metric_for_best_model": "loss"},
    ),
    "Lightning": ("lightning", lightning, {}),
    "Lightning that validates within epochs": (
        "lightning", lightning,
        {"val_check_interval": 1, "accumulate_grad_batches": 2, "clip": 1.0, "precision": "bf16-mixed",
         "checkpoint": {"every_n_train_steps": 1}, "num_sanity_val_steps": 0},
    ),
    "Lightning with ReduceLROnPlateau": (
        "lightning", lightning, {"plateau": True, "detect_anomaly": True, "deterministic": True},
    ),
    "Accelerate": ("accelerate", accelerated, {}),
    "Accelerate in mixed precision": ("accelerate", accelerated, {"precision": "bf16", "data": Stream()}),
    "loop": ("loop", plain, {}),
    "loop over a stream": ("loop", plain, {"data": Stream()}),
    "distributed loop": ("loop", plain, {"distributed": True}),
    "distributed Lightning": ("lightning", lightning, {"distributed": True}),
}  # fmt: skip
"""Programs by name: the integration, the function that trains, and its options."""

OF_PROGRAM = ("options", "rarer", "checkpointing", "resizable", "iterable", "threads_code")
"""Facts of a program that decide which remedies are legal in it."""


def sampled(seen, strategy):
    batches = seen.loader.batch_sampler
    kinds = {"group_by_length": "LengthGroupedSampler", "batch_rebalance": "BatchRebalanceSampler"}
    return type(getattr(batches, "sampler", batches)).__name__ == kinds[strategy]


def half(seen, _):
    return seen.dtype == torch.bfloat16


def fused(seen, _):
    return seen.optimizer.param_groups[0]["fused"]


PER_PROGRAM = {
    "dataloader_num_workers": lambda seen, value: seen.loader.num_workers == value,
    "num_workers": lambda seen, value: seen.loader.num_workers == value,
    "dataloader_prefetch_factor": lambda seen, value: seen.loader.prefetch_factor == value,
    "prefetch_factor": lambda seen, value: seen.loader.prefetch_factor == value,
    "dataloader_persistent_workers": lambda seen, _: seen.loader.persistent_workers,
    "persistent_workers": lambda seen, _: seen.loader.persistent_workers,
    "eval_steps": lambda seen, value: 1 <= seen.evaluations <= seen.done // value + 1,  # the best has one more
    "save_steps": lambda seen, value: 1 <= seen.checkpoints <= seen.done // value + 1,
    "val_check_interval": lambda seen, value: 1 <= seen.evaluations <= 2 * seen.done // value,
    "check_val_every_n_epoch": lambda seen, value: value is None or 1 <= seen.evaluations <= seen.done // value,
    "every_n_train_steps": lambda seen, value: seen.checkpoints == seen.done // value,
    "every_n_epochs": lambda seen, value: 1 <= seen.checkpoints <= seen.done // value,
    "num_sanity_val_steps": lambda seen, _: not seen.sanity,
    "bf16": half,
    "precision": half,
    "mixed_precision": half,
    "optim": fused,
    "fused": fused,
    "activation_checkpointing": lambda seen, _: not seen.model.is_activation_checkpointing,
    "train_sampling_strategy": sampled,
    "detect_anomaly": lambda seen, _: not seen.anomalies,
    "deterministic": lambda seen, _: not seen.deterministic,
    "pad_to_multiple_of": lambda seen, value: seen.width % value == 0 or seen.model.vocab_size % value == 0,
}
"""By an argument whose effect depends on the program: what is seen of a training that has it."""

EFFECTS = PER_PROGRAM | {
    "logging_steps": lambda seen, _: not seen.logs,
    "log_every_n_steps": lambda seen, _: not seen.logs,
    "logging_nan_inf_filter": lambda seen, value: seen.arguments.logging_nan_inf_filter is value,
    "attn_implementation": lambda seen, value: seen.model.config._attn_implementation == value,
    "ddp_bucket_cap_mb": lambda seen, value: seen.bucket == value,
    "bucket_cap_mb": lambda seen, value: seen.bucket == value,
    "torch_compile": lambda seen, _: seen.compiled,
    "torch_compile_mode": lambda seen, _: seen.compiled,
}


def arguments(sentence):
    """The keyword arguments in a sentence."""
    pairs = [keywords.items() for name, keywords, _ in calls(sentence) if name not in STATEMENTS]
    return dict([pair for items in pairs for pair in items])


class Facts(observer.Advice):
    """Keeps the facts of each fit."""

    fits: list = []  # noqa: RUF012 emptied by each training

    def __init__(self, recorder, facts, since):
        self.fits.append(facts)
        super().__init__(recorder, facts, since)


@pytest.fixture(name="train")
def _train(tmp_path, monkeypatch):
    """A function that trains a program with a change, and returns what is seen."""
    compiled, numbers = [], iter(range(10_000))
    monkeypatch.setattr(observer, "Advice", Facts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29512")
    monkeypatch.setattr(
        torch._TorchCompileInductorWrapper, "__call__", lambda _, graph, __: compiled.append(1) or graph.forward
    )

    def train(name, change):
        Facts.fits.clear()
        compiled.clear()
        _, program, options = PROGRAMS[name]
        precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
        try:
            for statement in change.statements:
                statement()
            seen = program(tmp_path / str(next(numbers)), change, **options)
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(mode=False)
            torch.autograd.set_detect_anomaly(mode=False)
            torch._dynamo.reset()
            AcceleratorState._reset_state(reset_partial_state=True)
        seen.compiled, seen.facts = bool(compiled), Facts.fits[0]
        return seen

    return train


def sentences(name, program, causes):
    """The remedies that rules can say in a program, on every path of their code."""
    integration = PROGRAMS[name][0]
    several = integration in {"transformers", "accelerate"} or "distributed" in name
    known = {field: getattr(program, field) for field in OF_PROGRAM} | {"integration": integration}
    remedies = {}
    for cause in causes:
        for usual, of, on in CASES[cause].values():
            filters = usual.nan_filter and integration == "transformers"
            optimizer = usual.optimizer and program.optimizer
            facts = replace(usual, nan_filter=filters, ddp=usual.ddp and several, optimizer=optimizer, **known)
            remedies |= {finding.remedy: None for finding in findings(on, facts, of) if finding.cause == cause}
    return [*remedies]


def faults(train, names, causes):
    """Apply each remedy in each program. Return how many sentences there are, and what is wrong."""
    number, wrong, tried = 0, [], set()
    for name in names:
        for sentence in sentences(name, train(name, Change()).facts, causes):
            number += 1
            of_program = name if {*arguments(sentence)} & {*PER_PROGRAM} else PROGRAMS[name][0]
            key = of_program, re.sub(r"\d+", "#", sentence)
            if [*calls(sentence)] and not NOT_HERE.search(sentence) and key not in tried:
                tried.add(key)
                wrong += [(name, sentence, fault) for fault in applied(train, name, sentence)]
    return number, wrong


def applied(train, name, sentence):
    """Train a program with a remedy, and return what is wrong."""
    change = Change()
    change.apply(sentence)
    try:
        seen = train(name, change)
    except Exception as error:  # noqa: BLE001 any error is a fault of the remedy
        return [f"{type(error).__name__}: {error}"]
    given = arguments(sentence)
    wrong = [f"{key} has no effect" for key, value in given.items() if key in EFFECTS and not EFFECTS[key](seen, value)]
    return wrong + [f"the program takes no {key}" for key in {*change.arguments} - change.taken]


def test_rarer_spans_are_legal_and_have_an_effect(train):
    names = [
        "Trainer that evaluates after epochs",
        "Trainer with a loader and an optimizer of its own",
        "Lightning",
        "Lightning with ReduceLROnPlateau",
    ]
    assert faults(train, names, ("evaluation", "checkpoint")) == (7, [])


@pytest.fixture
def _process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("_process_group")
def test_each_remedy_is_legal_in_its_program_and_has_an_effect(train):
    number, wrong = faults(train, PROGRAMS, CASES)
    assert wrong == [], "\n".join(map(str, wrong))
    assert number > 300


def test_commands_and_settings_that_a_remedy_names_exist():
    remedies = "".join(re.findall(r"^  (?:\w+: )?try (.*\n)", WORDINGS, re.MULTILINE))
    commands, settings = re.findall(r"perf-callbacks (\w+)", remedies), re.findall(r"(PERF_\w+)=(\w+)", remedies)
    assert [name for name in commands if name not in COMMANDS] == []
    assert resolve(PerfConfig(), dict(settings)).config.gc == "sync"
    assert (len({*commands}) > 1, len({*settings}) > 1) == (True, True)
