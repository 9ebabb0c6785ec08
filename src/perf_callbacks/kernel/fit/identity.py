"""Program, job and model of a fit, for the journal record that opens the fit."""

import platform
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.fit.training_objects import TrainingObjects
from perf_callbacks.kernel.foreign_errors import let_pass
from perf_callbacks.kernel.settings.config import LONGEST_RECORDED

_HIDDEN = "***"
_JOB_IDS = "SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID"

WRAPPERS = (
    "DataParallel",
    "DeepSpeedEngine",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",  # of torch.compile
    "_FabricModule",
)

_ENDINGS = (
    r"[\w.-]*(?:token|secret|password|passwd|pwd|credentials?|auth|api[-_.]?key|(?:access|private|secret)[-_.]?key)"
)
_NAME = re.compile(rf"-*{_ENDINGS}", re.IGNORECASE)
_NAMED = re.compile(rf"""(\b{_ENDINGS}["']?\s*[=:]\s*)("[^"]*"?|'[^']*'?|[^\s"',&}}]+)""", re.IGNORECASE)
_IN_URL = re.compile(r"(://)[^/@\s]+@")
_KNOWN = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)[\w.-]{10,}")


def of_program(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `Run` about program, machine and job that can be read."""
    values: dict[str, Any] = {"host": platform.node() or None, "job_id": job_id(environment)}
    with guard(let_pass):  # an embedding program may have no arguments
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        values["program"] = spec.name.removesuffix(".__main__") if spec is not None else sys.argv[0]
        values["command_line"] = command_line(sys.argv)
    with guard(let_pass):  # a directory may have been removed
        values["directory"] = str(Path.cwd())
    return values


def of_training(model: nn.Module | None, objects: Callable[[], TrainingObjects]) -> dict[str, Any]:
    """Return the fields of `Run` about the model and its batches that can be read."""
    values: dict[str, Any] = {}
    with guard(let_pass):  # a model and a loader may be anything
        if model is not None:
            values["model"] = model_name(model)
            values["parameters"] = parameters(model)
    with guard(let_pass):
        values["batch"] = batch_size(objects().loaders)
    return values


def job_id(environment: Mapping[str, str]) -> str | None:
    """Return the id that a scheduler or torchrun gave the job.

    >>> job_id({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "none"})
    '4711'
    """
    return next((environment[name] for name in _JOB_IDS if environment.get(name, "none") not in {"none", ""}), None)


def command_line(arguments: Sequence[str]) -> str:
    """Return a command line that a shell accepts, with `***` for values of arguments that look like secrets.

    >>> command_line(["train.py", "--hf_token", "abc", "wandb.api_key=def", "--max_tokens", "5", "s3://me:pw@host/x"])
    "train.py --hf_token '***' 'wandb.api_key=***' --max_tokens 5 's3://***@host/x'"
    """
    shown = []
    hide = False
    for argument in arguments:
        named = _NAMED.sub(rf"\g<1>{_HIDDEN}", argument)
        shown.append(_HIDDEN if hide else _KNOWN.sub(_HIDDEN, _IN_URL.sub(rf"\g<1>{_HIDDEN}@", named)))
        hide = not hide and argument.startswith("-") and _NAME.fullmatch(argument) is not None
    return shlex.join(shown)[:LONGEST_RECORDED]


def model_name(model: nn.Module) -> str:
    for _ in WRAPPERS:
        if type(model).__name__ not in WRAPPERS:
            break
        inner = getattr(model, "_orig_mod", getattr(model, "module", None))
        model = inner if isinstance(inner, nn.Module) else model
    return type(model).__name__


def parameters(model: nn.Module) -> int | None:
    """Count sharded parameters in full size. None: a size is unknown, as of a parameter without a shape yet."""
    managed = any(getattr(module, "_is_fsdp_managed_module", False) for module in model.modules())
    sizes = [parameter_size(parameter, managed=managed) for parameter in model.parameters()]
    full = [size for size in sizes if size is not None]
    return sum(full) if len(full) == len(sizes) else None


def parameter_size(parameter: nn.Parameter, *, managed: bool) -> int | None:
    """Count the elements on all ranks. `managed`: FSDP 1 manages the model."""
    lazy = isinstance(parameter, nn.parameter.UninitializedParameter)
    whole = getattr(parameter, "ds_numel", None)  # DeepSpeed's stage 3
    if (
        lazy
        or hasattr(parameter, "quant_state")
        or (managed and whole is None and not hasattr(parameter, "device_mesh"))
    ):
        return None
    return parameter.numel() if whole is None else int(whole)


def batch_size(loaders: Sequence[Any]) -> int | None:
    """None: the loaders differ or don't show the number."""
    sizes = {
        getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
        for loader in loaders
    }
    size = sizes.pop() if len(sizes) == 1 else None
    return size if type(size) is int else None
