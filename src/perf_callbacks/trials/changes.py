"""Changes that a trial makes to a program from outside, when the program imports torch or a trainer."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.trials.process import TrialProcess
from perf_callbacks.trials.writes import PRETRAINED, Writes

FUSED = ("Adam", "AdamW", "Adagrad", "SGD")

CHECKPOINT_ARGUMENTS = frozenset(
    {"use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop"}
)
"""Torch's `checkpoint` does not pass them on to the checkpointed function."""

KEPT_TRACKER = "tensorboard"
"""Stays on in a trial, because it writes only to the scratch directory."""


def actions(trial: TrialProcess) -> dict[str, Callable[[ModuleType], None]]:
    writes = Writes(trial)
    writes.watch()
    lightning = functools.partial(_lightning, trial, writes)
    return {
        "torch": functools.partial(_torch, trial, writes),
        "safetensors.torch": lambda module: writes.keep(module, "save_file", 1),
        "torch.jit": lambda module: writes.keep(module, "save", 1),
        "huggingface_hub.hf_api": writes.hub,
        "wandb": lambda module: _arguments(module, lambda given: given.update(mode="disabled"), "init"),
        "transformers.training_args": functools.partial(_training_arguments, trial),
        "transformers.trainer": functools.partial(_trainer, writes),
        "accelerate.accelerator": functools.partial(_accelerator, trial, writes),
        "lightning.pytorch.trainer.trainer": lightning,
        "pytorch_lightning.trainer.trainer": lightning,
        **dict.fromkeys(
            ("lightning.fabric.plugins.io.torch_io", "lightning_fabric.plugins.io.torch_io"),
            lambda module: writes.keep(module.TorchCheckpointIO, "save_checkpoint", 2),
        ),
        **{name: functools.partial(_pretrained, writes, kind) for name, kind in PRETRAINED.items()},
    }


def _pretrained(writes: Writes, kind: str, module: ModuleType) -> None:
    if hasattr(module, kind):  # other versions have other classes
        writes.keep(getattr(module, kind), "save_pretrained", 1)


def at_begin(trial: TrialProcess, model: Any) -> None:
    import torch  # noqa: PLC0415 the program has imported it

    _numbers(trial, torch)
    if model is None:
        return
    if "attention" in trial.changes:
        for module in model.modules():
            if getattr(getattr(module, "config", None), "_attn_implementation", None) == "eager" and hasattr(
                module, "set_attn_implementation"
            ):
                module.set_attn_implementation("sdpa")
                trial.applied.add("attention")
    if "compile" in trial.changes and "compile" not in trial.applied:
        # Lightning calls `training_step`, not the module itself, so the children are compiled instead.
        for module in [*model.children()] if hasattr(model, "training_step") else [model]:
            module.compile()
        trial.applied.add("compile")


def _numbers(trial: TrialProcess, torch: ModuleType) -> None:
    if "precision" in trial.changes:
        torch.set_float32_matmul_precision("high")
        trial.applied.add("precision")
    if threads := trial.changes.get("threads"):
        torch.set_num_threads(threads)
        trial.applied.add("threads")


def _torch(trial: TrialProcess, writes: Writes, torch: ModuleType) -> None:
    import torch.optim.optimizer as optimizers  # noqa: PLC0415 torch has just been imported
    import torch.utils.checkpoint as checkpointing  # noqa: PLC0415 as above
    from torch.utils.data import DataLoader, IterableDataset  # noqa: PLC0415 as above

    untraced = torch._disable_dynamo  # noqa: SLF001 the public `torch.compiler.disable` imports the compiler at once
    _numbers(trial, torch)
    optimizers.register_optimizer_step_post_hook(
        untraced(lambda optimizer, _args, _kwargs: trial.step_ended(optimizer))
    )
    inner = torch.Tensor.backward

    def store(loss: object) -> None:
        trial.backward(loss)

    store_untraced = untraced(store)  # torch sets an attribute, which the bound method can't have

    @functools.wraps(inner)
    def backward(loss: object, *args: Any, **kwargs: Any) -> Any:
        store_untraced(loss)
        return inner(loss, *args, **kwargs)  # a subclass of `Tensor` may return a value

    torch.Tensor.backward = backward

    def loads_state(given: dict[str, Any]) -> None:
        if given["state_dict"].get("state"):  # accelerate loads the empty state of a new optimizer
            writes.resumes()

    _arguments(torch.optim.Optimizer, loads_state, "load_state_dict")
    writes.keep(torch, "save", 1)
    writes.keep(torch.serialization, "save", 1)
    _arguments(DataLoader, functools.partial(_loader, trial, IterableDataset))
    if "optimizer" in trial.changes:
        for name in FUSED:
            _fuse(trial, getattr(torch.optim, name))
    if "checkpointing" in trial.changes:

        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            trial.applied.add("checkpointing")
            return function(
                *args, **{name: value for name, value in kwargs.items() if name not in CHECKPOINT_ARGUMENTS}
            )

        checkpointing.checkpoint = checkpoint


def _loader(trial: TrialProcess, iterable: type, given: dict[str, Any]) -> None:
    """An iterable data set's loader is not changed, because several workers may load the same samples."""
    if isinstance(given["dataset"], iterable):
        return
    for name, argument in (("workers", "num_workers"), ("prefetch", "prefetch_factor")):
        number = trial.changes.get(name)
        works = name == "workers" or given.get("num_workers")
        if works and number and given.get(argument) != number:
            given[argument] = number
            trial.applied.add(name)
    if "persistence" in trial.changes and given.get("num_workers") and not given.get("persistent_workers"):
        given["persistent_workers"] = True
        trial.applied.add("persistence")


def _fuse(trial: TrialProcess, kind: Any) -> None:
    inner = kind.__init__
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def init(self: object, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        arguments = given.arguments
        if not (arguments.get("fused") or arguments.get("foreach") or arguments.get("differentiable")):
            arguments["params"] = [*arguments["params"]]  # may be a generator, which can be read once
            before = arguments.get("fused")
            arguments["fused"] = True
            try:
                inner(*given.args, **given.kwargs)
            except (RuntimeError, TypeError) as error:  # parameters that no fused form can update
                let_pass(error)
                arguments["fused"] = before
            else:
                trial.applied.add("optimizer")
                return
        inner(*given.args, **given.kwargs)

    kind.__init__ = init


def _training_arguments(trial: TrialProcess, module: ModuleType) -> None:
    checked = module.TrainingArguments.__post_init__

    @functools.wraps(checked)
    def post_init(self: Any) -> None:
        self.output_dir = os.path.join(trial.plan.scratch, "output")  # noqa: PTH118 a string, as the program expects
        self.save_strategy, self.push_to_hub = "no", False
        if hasattr(self, "logging_dir"):  # until transformers 5
            self.logging_dir = None
        listed = [self.report_to] if isinstance(self.report_to, str) else [*(self.report_to or ())]
        self.report_to = [KEPT_TRACKER] if KEPT_TRACKER in listed else "none"
        if logging := trial.changes.get("logging"):
            self.logging_steps = logging
            trial.applied.add("logging")
        if "nan_filter" in trial.changes:
            self.logging_nan_inf_filter = False
            trial.applied.add("nan_filter")
        if "rebalance" in trial.changes and hasattr(self, "train_sampling_strategy"):
            self.train_sampling_strategy = "batch_rebalance"
            trial.applied.add("rebalance")
        best, self.load_best_model_at_end = self.load_best_model_at_end, False  # the best would have to be saved
        if best:  # callbacks rely on the name and the setting
            self.metric_for_best_model = self.metric_for_best_model or "loss"
        checked(self)
        self.load_best_model_at_end = best
        if best and self.greater_is_better is None:
            self.greater_is_better = not self.metric_for_best_model.endswith("loss")

    module.TrainingArguments.__post_init__ = post_init


def _trainer(writes: Writes, module: ModuleType) -> None:
    writes.keep(module.Trainer, "save_model", 1)
    _arguments(module.Trainer, functools.partial(_from_the_start, writes, "resume_from_checkpoint"), "train")


def _from_the_start(writes: Writes, argument: str, given: dict[str, Any]) -> None:
    if given.get(argument):
        writes.resumes()
        given[argument] = None


def _accelerator(trial: TrialProcess, writes: Writes, module: ModuleType) -> None:
    def change(given: dict[str, Any]) -> None:
        if given.get("project_dir") is not None:
            given["project_dir"] = trial.plan.scratch
        project = given.get("project_config")
        if project is not None:
            directories = {"project_dir": trial.plan.scratch, "logging_dir": trial.plan.scratch}
            given["project_config"] = dataclasses.replace(project, **directories)
        given["log_with"] = None

    _arguments(module.Accelerator, change)
    writes.keep(module.Accelerator, "save_state", 1)
    writes.keep(module.Accelerator, "save_model", 2)


def _lightning(trial: TrialProcess, writes: Writes, module: ModuleType) -> None:
    def change(given: dict[str, Any]) -> None:
        given["default_root_dir"] = trial.plan.scratch
        given["enable_checkpointing"] = False
        callbacks = given.get("callbacks")
        given["callbacks"] = [
            callback for callback in _several(callbacks) if not isinstance(callback, module.Checkpoint)
        ]
        for logger in _several(given.get("logger")):
            if hasattr(logger, "_root_dir"):
                logger._root_dir = trial.plan.scratch  # noqa: SLF001 TensorBoard's and CSV's loggers have no setter
        if logging := trial.changes.get("logging"):
            given["log_every_n_steps"] = logging
            trial.applied.add("logging")

    _arguments(module.Trainer, change)
    _arguments(module.Trainer, functools.partial(_from_the_start, writes, "ckpt_path"), "fit")


def _several(given: Any) -> list[Any]:
    return [*given] if isinstance(given, list | tuple) else [] if given is None else [given]


def _arguments(owner: Any, change: Callable[[dict[str, Any]], None], name: str = "__init__") -> None:
    inner = getattr(owner, name)
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def method(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        change(given.arguments)
        return inner(*given.args, **given.kwargs)

    setattr(owner, name, method)
