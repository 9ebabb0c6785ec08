"""Arguments of a Hugging Face trainer that have an effect in a program. Advice names only these."""

import inspect
from typing import Any

from torch.utils.data import IterableDataset
from transformers import Trainer, TrainingArguments

from perf_callbacks.kernel.engine.account import CHECKPOINT, EVALUATION
from perf_callbacks.kernel.fit.rarer import Rarer

LOADING = ("dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_persistent_workers")

SAMPLING = ("train_sampling_strategy", "group_by_length")
"""Names of one argument, in transformers 5 and 4."""

ALWAYS = ("logging_steps", "ddp_bucket_cap_mb", "num_generations", "max_completion_length", "max_new_tokens")
"""Arguments that have an effect in each trainer that has them."""


def effective(args: TrainingArguments, trainer: Trainer) -> dict[str, str]:
    """Return the names of the arguments that have an effect, each with the name of the class that takes it."""
    mixes = trainer.accelerator.mixed_precision != "no" or trainer.is_deepspeed_enabled
    accumulation = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None) or {}
    has_effect = {
        **{name: _reads(trainer, name, "get_train_dataloader", "_get_dataloader") for name in LOADING},
        **dict.fromkeys(SAMPLING, _groups(trainer)),
        **dict.fromkeys(ALWAYS, True),
        **dict.fromkeys(("bf16", "fp16"), not mixes),
        **dict.fromkeys(("torch_compile", "torch_compile_mode"), not args.torch_compile),
        "activation_checkpointing": getattr(args, "activation_checkpointing", False),
        "gradient_checkpointing": args.gradient_checkpointing and not hasattr(args, "activation_checkpointing"),
        "full_determinism": args.full_determinism,
        "optim": _makes_optimizer(args, trainer),
        "use_vllm": not getattr(args, "use_vllm", True),
        "accelerator_config": accumulation.get("sync_each_batch", False),
    }
    takers = {name: type(args).__name__ for name, effect in has_effect.items() if effect and hasattr(args, name)}
    collator = trainer.data_collator
    return takers | ({"pad_to_multiple_of": type(collator).__name__} if hasattr(collator, "pad_to_multiple_of") else {})


def rarer(args: TrainingArguments) -> dict[str, Rarer]:
    """Return the arguments that make evaluations and checkpoints rarer, so that the trainer accepts them.

    If the trainer loads the best model at the end, it evaluates before each checkpoint: both strategies are the same,
    and `save_steps` is a multiple of `eval_steps`.
    """
    evaluated, saved = (str(getattr(one, "value", one)) for one in (args.eval_strategy, args.save_strategy))
    every = {"eval": args.eval_steps or 0, "save": args.save_steps}
    tied = args.load_best_model_at_end and saved != "best"
    whole = saved == "steps" and min(every.values()) >= 1  # else numbers are parts of the training

    def code(**strategies: str) -> str:
        prefixes = {name: "" if now == "steps" else f'{name}_strategy="steps", ' for name, now in strategies.items()}
        parts = [f"{prefix}{name}_steps={{steps}}" for name, prefix in prefixes.items()]
        return f"{type(args).__name__}({', '.join(parts)})"

    both = code(eval=evaluated, save=saved)
    apart = {
        name: every[name] if now == "steps" and every[name] >= 1 else None
        for name, now in (("eval", evaluated), ("save", saved))
    }
    evaluation = Rarer(
        both if tied else code(eval=evaluated),
        multiple=int(every["save"]) if tied and whole else 1,
        apart=apart["eval"],
    )
    checkpoint = evaluation
    if whole or not tied:
        checkpoint = Rarer(code(save=saved), multiple=int(every["eval"]) if tied else 1, apart=apart["save"])
    if saved == "best":  # a checkpoint follows an evaluation
        checkpoint = evaluation
    found = {EVALUATION: evaluation, CHECKPOINT: checkpoint}
    if evaluated == "no":  # the program evaluates
        found.pop(EVALUATION)
    if saved == "no" or (saved == "best" and evaluated == "no"):
        found.pop(CHECKPOINT)
    return found


def _reads(trainer: Trainer, argument: str, *methods: str) -> bool:
    """Return False if one of the methods is the program's own, and its code neither names the argument nor calls on."""
    for name in methods:
        own, usual = (
            getattr(inspect.unwrap(getattr(owner, name, _nothing)), "__code__", None) for owner in (trainer, Trainer)
        )
        if own is None or (own is not usual and not {argument, "super", name} & {*own.co_names}):
            return False
    return True


def _nothing() -> None:
    """Stand for a method that other versions of transformers have."""


def _groups(trainer: Trainer) -> bool:
    """Return True if the trainer can group samples by their lengths: else it raises an error or ignores the setting."""
    dataset, collator = trainer.train_dataset, trainer.data_collator
    processing: Any = getattr(trainer, "processing_class", None)
    if "input_ids" not in getattr(processing, "model_input_names", ["input_ids"])[:1]:
        return False
    kind = collator if inspect.isfunction(collator) else type(collator)
    named = "input_ids" in (getattr(dataset, "column_names", None) or ())
    # A collator of transformers takes mappings with token ids. The trainer iterates over its data sets: without
    # `__iter__`, this ends only if a data set raises an IndexError.
    evaluated = trainer.eval_dataset
    sets = [dataset, *(evaluated.values() if isinstance(evaluated, dict) else [evaluated])]
    iterated = all([one is None or hasattr(one, "__iter__") for one in sets])
    named = named or kind.__module__.startswith("transformers.")
    sampled = _reads(trainer, "_get_train_sampler", "get_train_dataloader", "_get_dataloader")
    sampled = sampled and all(_reads(trainer, name, "_get_train_sampler") for name in SAMPLING)
    return sampled and named and iterated and hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset)


def _makes_optimizer(args: TrainingArguments, trainer: Trainer) -> bool:
    """Return True if the trainer itself has made an AdamW that is not fused: its two groups have its weight decay."""
    decays = [group.get("weight_decay") for group in getattr(trainer.optimizer, "param_groups", ())]
    asked = str(getattr(args.optim, "value", args.optim)) == "adamw_torch"
    own = getattr(trainer, "optimizer_cls_and_kwargs", None) is None and _reads(trainer, "optim", "create_optimizer")
    return asked and own and decays == [args.weight_decay, 0.0]
