"""Each remedy that a rule names is legal in the program it is said of, and has an effect there: it is applied."""

import ast
import contextlib
import functools
import gc
import re
import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from advised import findings
from advised_programs import PROGRAMS, Change, Seen

from perf_callbacks.advice import observer
from perf_callbacks.commands import COMMANDS

CASES = runpy.run_path(str(Path(__file__).with_name("test_wordings.py")))["CASES"]

pytestmark = pytest.mark.filterwarnings("ignore")  # frameworks warn of programs like these

OF_PROGRAM = ("options", "rarer", "checkpointing", "resizable", "iterable", "threads_code")
"""Facts of a program that decide which remedies are legal in it."""

CALL = re.compile(r"([A-Za-z_][\w.]*)\((?:\.\.\., |model, )?([^()]*)\)")
"""A call in a sentence: its name, and its arguments without those that the program has anyway."""

STATEMENTS = {
    "torch.set_float32_matmul_precision": torch.set_float32_matmul_precision,
    "torch.use_deterministic_algorithms": torch.use_deterministic_algorithms,
    "torch.autograd.set_detect_anomaly": torch.autograd.set_detect_anomaly,
    "torch.set_num_threads": torch.set_num_threads,
}

LATER = re.compile(
    r"^(loss|torch\.utils|work\.wait|measure|accelerator\.prepare|gc\.|torch\.\w+\.synchronize|tensor\.to|torch\.where)"
)
"""Calls in a sentence that only explain it, or that have a row of their own."""


def in_sentence(sentence):
    """The calls that a remedy asks for."""
    return [call for call in CALL.findall(sentence) if not LATER.match(call[0])]


def given(arguments):
    """The keyword arguments of a call, and its others."""
    call = ast.parse(f"f({arguments})", mode="eval").body
    literal = [ast.literal_eval(one) for one in call.args if isinstance(one, ast.Constant)]
    return {one.arg: ast.literal_eval(one.value) for one in call.keywords}, literal


def calls(change, match):
    """Apply each call in a sentence: as an argument of a class, before the training, or to the model."""
    for name, arguments in in_sentence(match.string):
        keywords, others = given(arguments)
        if name in STATEMENTS:
            change.statements.append(functools.partial(STATEMENTS[name], *others, **keywords))
        elif name.startswith("model.") and not name.endswith("no_sync"):
            change.on_model.append(lambda model, name=name, of=keywords: getattr(model, name[6:])(**of) and None)
        elif name == "torch.compile" and "dynamic" in keywords:  # the program compiles its model already
            change.on_model.append(lambda model, of=keywords: model.compile(**of))
        elif name == "torch.compile":
            change.on_model.append(lambda model, of=keywords: torch.compile(model, **of))
        elif name == "torch.autocast":
            change.autocast = functools.partial(torch.autocast, "cpu", torch.bfloat16)
        elif name.endswith("no_sync"):
            change.around = lambda owner, of=name: no_sync(owner, of)
        else:
            workers = {"dataloader_prefetch_factor", "dataloader_persistent_workers"} & {
                *keywords
            }  # advised with workers
            change.arguments.setdefault(name, {}).update(keywords, **{"dataloader_num_workers": 2} if workers else {})
    if frequency := re.search(r"frequency=(\d+) in", match.string):
        change.arguments["ReduceLROnPlateau"] = {"frequency": int(frequency[1])}
    if re.search(r"(eval|save)_steps|val_check|check_val|every_n", match.string):
        change.steps = 33


def no_sync(owner, name):
    return (
        owner.no_sync(*["model"] * name.startswith("accelerator"))
        if hasattr(owner, "no_sync")
        else contextlib.nullcontext()
    )


def environment(change, match):
    change.environment |= dict(re.findall(r"\b([A-Z_]{5,})=([\w:]+)", match.string))


def knobs(**values):
    """Apply a remedy in words by a change of the program."""

    def apply(change, _match):
        for name, value in values.items():
            setattr(change, name, value)

    return apply


def classes(**arguments):
    """Apply a remedy in words by arguments of classes."""
    return knobs(arguments=arguments)


def on_model(name):
    """Apply a remedy in words by a method of the model."""
    return knobs(on_model=[lambda model: getattr(model, name)() and None])


def sampled(seen, strategy):
    batches = seen.loader.batch_sampler
    kinds = {"group_by_length": "LengthGroupedSampler", "batch_rebalance": "BatchRebalanceSampler"}
    return type(getattr(batches, "sampler", batches)).__name__ == kinds[strategy]


EFFECTS = {
    "dataloader_num_workers": lambda seen, value: seen.loader.num_workers == value,
    "num_workers": lambda seen, value: seen.loader.num_workers == value,
    "dataloader_prefetch_factor": lambda seen, value: seen.loader.prefetch_factor == value,
    "prefetch_factor": lambda seen, value: seen.loader.prefetch_factor == value,
    "dataloader_persistent_workers": lambda seen, _: seen.loader.persistent_workers,
    "persistent_workers": lambda seen, _: seen.loader.persistent_workers,
    "eval_steps": lambda seen, value: (
        1 <= seen.evaluations <= seen.done // value + 1
    ),  # one more at the end, for the best
    "save_steps": lambda seen, value: 1 <= seen.checkpoints <= seen.done // value + 1,
    "val_check_interval": lambda seen, value: 1 <= seen.evaluations <= 2 * seen.done // value,
    "check_val_every_n_epoch": lambda seen, value: value is None or 1 <= seen.evaluations <= seen.done // value,
    "every_n_train_steps": lambda seen, value: seen.checkpoints == seen.done // value,
    "every_n_epochs": lambda seen, value: 1 <= seen.checkpoints <= seen.done // value,
    "logging_steps": lambda seen, _: not seen.logs,
    "log_every_n_steps": lambda seen, _: not seen.logs,
    "num_sanity_val_steps": lambda seen, _: not seen.sanity,
    "logging_nan_inf_filter": lambda seen, value: seen.arguments.logging_nan_inf_filter is value,
    "bf16": lambda seen, _: seen.dtype == torch.bfloat16,
    "precision": lambda seen, _: seen.dtype == torch.bfloat16,
    "mixed_precision": lambda seen, _: seen.dtype == torch.bfloat16,
    "optim": lambda seen, _: seen.optimizer.param_groups[0]["fused"],
    "fused": lambda seen, _: seen.optimizer.param_groups[0]["fused"],
    "attn_implementation": lambda seen, value: seen.model.config._attn_implementation == value,
    "activation_checkpointing": lambda seen, _: not seen.model.is_activation_checkpointing,
    "train_sampling_strategy": sampled,
    "ddp_bucket_cap_mb": lambda seen, value: seen.bucket == value,
    "bucket_cap_mb": lambda seen, value: seen.bucket == value,
    "detect_anomaly": lambda seen, _: not seen.anomalies,
    "deterministic": lambda seen, _: not seen.deterministic,
    "pad_to_multiple_of": lambda seen, value: seen.width % value == 0 or seen.model.vocab_size % value == 0,
    "torch_compile": lambda seen, _: seen.compiled,
    "torch_compile_mode": lambda seen, _: seen.compiled,
}
"""By an argument: what is seen of a training that has it."""

PER_PROGRAM = {*EFFECTS} - {
    "logging_steps",
    "log_every_n_steps",
    "logging_nan_inf_filter",
    "torch_compile",
    "torch_compile_mode",
    "attn_implementation",
    "ddp_bucket_cap_mb",
    "bucket_cap_mb",
}
"""Arguments whose effect depends on the program. The others are applied once for each integration."""


def arguments(sentence):
    """The keyword arguments in a sentence."""
    calls = [given(of)[0] for name, of in in_sentence(sentence) if name not in STATEMENTS]
    return {name: value for call in calls for name, value in call.items()}


def effects(seen, sentence):
    """Arguments in a sentence without their effect."""
    return [name for name, value in arguments(sentence).items() if name in EFFECTS and not EFFECTS[name](seen, value)]


def has_workers(seen):
    return seen.loader.num_workers == 2


def has_interval(seen):
    return seen.recorder.config.gc_interval == 500


def checkpoints(seen):
    return seen.model.is_activation_checkpointing


WORKERS = {"DataLoader": {"num_workers": 2}, "TrainingArguments": {"dataloader_num_workers": 2}}
HEADS = {"num_attention_heads": 1, "num_key_value_heads": 1}

ROWS = (
    (r"^(?!.*(mixed_precision=\"fp16|fp16=True|\"16-mixed|torch\.float16|model_wrapped)).*\w\(", calls, None),
    (r"^num_workers=7|num_workers in the Data|more loader workers", classes(**WORKERS), has_workers),
    (r"fewer workers", classes(DataLoader={"num_workers": 0}), lambda seen: not seen.loader.num_workers),
    (r"^PERF_CALLBACKS_GC=sync", environment, lambda seen: seen.recorder.config.gc == "sync"),
    (r"^PERF_CALLBACKS_FLOPS=estimate", environment, lambda seen: seen.recorder.config.flops == "estimate"),
    (r"gc_interval", knobs(environment={"PERF_CALLBACKS_GC_INTERVAL": "500"}), has_interval),
    (r"^(PYTORCH_CUDA_ALLOC_CONF|TORCH_LOGS|OMP_NUM_THREADS|ACCELERATE_DYNAMO)", environment, None),
    (r"^unsetting", knobs(), None),
    (r"longer run", knobs(steps=9), lambda seen: seen.done == 9),
    (r"(?<!micro-)batches of (few shapes|even|samples)|packing", knobs(lengths=(16,)), lambda seen: seen.width == 16),
    (r"longest sample of a batch", knobs(lengths=(9,), longest=True), lambda seen: seen.width == 9),
    (r"padding to a multiple of 8", knobs(lengths=(16,)), lambda seen: seen.width % 8 == 0),
    (r"^padding it to", classes(from_pretrained={"vocab_size": 72}), lambda seen: seen.output.shape[-1] == 72),
    (r"number of heads", classes(from_pretrained=HEADS), lambda seen: seen.model.config.num_attention_heads == 1),
    (r"smaller batch|another size of the batch", knobs(batch=2), lambda seen: len(seen.output) == 2),
    (r"larger micro-batches|^micro-batches of", knobs(batch=8), lambda seen: len(seen.output) == 8),
    (
        r"caching prepared|cheaper transforms|preparing the data set|what the loader does|equally long",
        knobs(cached=True, steps=9),
        lambda seen: seen.data is None or seen.data.made <= 8,
    ),
    (
        r"every 50 steps|one rank does alone|^keeping values|copying them rarely",
        knobs(every=50),
        lambda seen: not seen.calls,
    ),
    (
        r"one after every 30 steps",
        knobs(spans_every=30, steps=33),
        lambda seen: seen.evaluations == seen.checkpoints == 1,
    ),
    (r"out of the (training thread|first step)", knobs(in_thread=True), lambda seen: seen.threads == {False}),
    (r"lists that grow|lists, hooks or logs|keeping no tensor", knobs(keeps=False), lambda seen: not seen.kept),
    (r"removing calls of gc\.collect", knobs(collects=False), lambda seen: not seen.collections),
    (r"^views", knobs(copies=False), lambda seen: not seen.copies),
    (r"fixed shape", knobs(fixed=True), lambda seen: seen.shapes == {3}),
    (r"checkpointing fewer layers", on_model("activation_checkpointing_disable"), lambda seen: not checkpoints(seen)),
    (r"activation checkpointing", on_model("activation_checkpointing_enable"), checkpoints),
    (r"breaking reference cycles", knobs(statements=[lambda: gc.set_debug(gc.DEBUG_SAVEALL)]), lambda seen: seen.saved),
    (r"`perf-callbacks (\w+)`", None, None),
)  # fmt: skip
"""By a pattern of the sentence: how it is applied, and what is seen of a training to which it is."""

UNAPPLIED = {
    r"fp16=True|mixed_precision=\"fp16|\"16-mixed|torch\.float16": "float16 needs a GPU",
    r"nvidia-smi|cooling|power supply": "it is about a GPU and its machine",
    r"quota|more CPUs|throttling": "it is about the machine",
    r"FSDP|async_op|collective|pipeline|bf16_compress_hook": "it needs several ranks, and code of its own",
    r"synchronize|non_blocking|on a stream": "it needs a GPU",
    r"completions": "it is about generation in TRL",
    r"model_wrapped": "it needs a job of several ranks",
}
"""Sentences that no program here can apply, with the reason."""


@contextlib.contextmanager
def as_before():
    """Undo what a statement or a trainer leaves in the process."""
    state = torch.get_float32_matmul_precision(), torch.get_num_threads(), gc.get_debug()
    yield
    torch.set_float32_matmul_precision(state[0])
    torch.set_num_threads(state[1])
    gc.set_debug(state[2])
    gc.garbage.clear()
    torch.use_deterministic_algorithms(mode=False)
    torch.autograd.set_detect_anomaly(mode=False)
    torch._dynamo.reset()
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(name="train")
def _train(tmp_path, monkeypatch):
    """A function that trains a program with a change, and returns what is seen."""
    monkeypatch.setattr(observer, "Advice", Seen)
    monkeypatch.chdir(tmp_path)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}.items():
        monkeypatch.setenv(name, value)
    compiled = []
    monkeypatch.setattr(
        torch._TorchCompileInductorWrapper,
        "__call__",
        lambda _self, graph, _inputs: compiled.append(1) or graph.forward,
    )
    numbers = iter(range(10_000))

    def train(program, change):
        Seen.fits.clear()
        compiled.clear()
        with as_before(), monkeypatch.context() as patch:
            for name, value in change.environment.items():
                patch.setenv(name, value)
            for statement in change.statements:
                statement()
            seen = program(tmp_path / str(next(numbers)), change)
            seen.saved, dataset = bool(gc.get_debug()), seen.loader.dataset
            seen.data = dataset if hasattr(dataset, "made") else None
        seen.compiled, seen.facts, seen.recorder = bool(compiled), *Seen.fits[0]
        return seen

    return train


def sentences(program, integration, causes, *, distributed=False):
    """The remedies that rules can say in a program, on every path of their code."""
    of_program = {name: getattr(program, name) for name in OF_PROGRAM}
    found = {}
    for cause in causes:
        for usual, of, on in CASES[cause].values():
            optimizer = usual.optimizer and program.optimizer
            several = integration in {"transformers", "accelerate"} or distributed
            filters = usual.nan_filter and integration == "transformers"
            changes = {
                "integration": integration,
                "optimizer": optimizer,
                "nan_filter": filters,
                "ddp": usual.ddp and several,
            }
            facts = replace(usual, **changes, **of_program)
            found |= {one.remedy: None for one in findings(on, facts, of) if one.cause == cause}
    return [*found]


def faults(train, programs, causes):
    """Apply each remedy in each program. Return the sentences, those without a row, and what is wrong."""
    said, unapplied, wrong, tried = [], [], [], set()
    for name, (integration, program) in programs.items():
        facts = train(program, Change()).facts
        for sentence in sentences(facts, integration, causes, distributed="distributed" in name):
            said.append((name, sentence))
            rows = [row for row in ROWS if re.search(row[0], sentence)]
            if not [row for row in rows if row[1] is not calls or in_sentence(sentence)]:
                unapplied.append((name, sentence))
            for row in rows:
                pattern, apply, _ = row
                key = re.sub(r"\d+", "#", sentence if apply is calls else pattern)
                if apply is calls:
                    key = (name if {*arguments(sentence)} & PER_PROGRAM else integration), key
                if key in tried:
                    continue
                tried.add(key)
                wrong += [(name, sentence, fault) for fault in applied(train, program, sentence, row)]
    return said, unapplied, wrong


def applied(train, program, sentence, row):
    """Train a program with a remedy, and return what is wrong."""
    pattern, apply, effect = row
    match, change = re.search(pattern, sentence), Change()
    if apply is None:
        return [one for one in re.findall(r"perf-callbacks (\w+)", sentence) if one not in COMMANDS]
    apply(change, match)
    try:
        seen = train(program, change)
    except Exception as error:  # noqa: BLE001 any error is a fault of the remedy
        return [f"{type(error).__name__}: {error}"]
    wrong = [f"{name} has no effect" for name in effects(seen, sentence)] if apply is calls else []
    wrong += [f"the program takes no {one}" for one in {*change.arguments} - change.taken if apply is calls]
    return wrong + ["no effect"] * (effect is not None and not effect(seen))


def test_rarer_spans_and_workers_are_legal_and_have_an_effect(train):
    programs = {
        name: PROGRAMS[name]
        for name in (
            "Trainer that evaluates after epochs",
            "Trainer with a loader and an optimizer of its own",
            "Lightning",
            "Lightning with ReduceLROnPlateau",
        )
    }
    said, _, wrong = faults(train, programs, ("evaluation", "checkpoint"))
    assert (len(said), wrong) == (7, [])


@pytest.mark.slow
def test_each_remedy_is_legal_in_its_program_and_has_an_effect(train):
    with process_group():
        said, unapplied, wrong = faults(train, PROGRAMS, CASES)
    assert wrong == [], "\n".join(map(str, wrong))
    reasons = Counter(one for _, one in unapplied if not any(re.search(pattern, one) for pattern in UNAPPLIED))
    assert reasons == Counter()
    assert len({one for _, one in unapplied}) <= len({one for _, one in said}) / 6


@contextlib.contextmanager
def process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
