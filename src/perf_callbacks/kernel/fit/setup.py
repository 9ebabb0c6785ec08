"""Model, optimizers and data loaders with which a fit trains, as its integration knows them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from perf_callbacks.kernel.process import terminal
from perf_callbacks.kernel.records.fit_records import Checklist


class Rarer(NamedTuple):
    """Code that makes a trainer's evaluations or checkpoints rarer, such as "TrainingArguments(eval_steps={steps})"."""

    code: str
    """`{steps}` stands for the wanted number of steps, and `{times}` for the argument's new value."""
    value: int = 1
    """Value of the argument now, in units of its own, such as epochs."""
    multiple: int = 1
    """The trainer accepts only a number of steps that is a multiple of this number."""

    def written(self, steps: int, factor: int) -> str:
        """Return the code that makes one evaluation every `steps` steps, `factor` times as rare as now.

        >>> Rarer("Trainer(check_val_every_n_epoch={times})", value=2).written(30, 10)
        'Trainer(check_val_every_n_epoch=20)'
        >>> Rarer("TrainingArguments(save_steps={steps})", multiple=8).written(30, 10)
        'TrainingArguments(save_steps=32)'
        """
        steps = self.multiple * math.ceil(steps / self.multiple)
        return self.code.format(steps=steps, times=factor * self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Optimizers, data loaders and settings with which a fit trains."""

    optimizers: tuple[Any, ...] = ()
    loaders: tuple[Any, ...] = ()
    called: Any = None
    """The model that the training loop calls, including wrappers. None: it is unknown."""
    log_every: int | None = None
    """Number of steps between two log lines of the trainer. None: the trainer logs nothing, or the number is
    unknown."""
    nan_filter: bool = False
    """True if the trainer checks each loss for NaN."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Arguments of the trainer that have an effect in this program, each with the name of the class that takes it."""
    rarer: Mapping[str, Rarer] = field(default_factory=dict)
    """How to make evaluations and checkpoints rarer, by the kind of span."""
    fusible: bool = True
    """False: a fused optimizer would raise an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Arguments that the factories of observers get besides the recorder."""

    model: nn.Module | None
    """The model whose FLOPs are counted. None: no FLOPs are counted."""
    setup: Callable[[], Setup] = Setup
    """Function that returns the fit's optimizers and loaders. The call may raise any error."""
    armed: bool = False
    """True if a launcher, and not the program itself, has added the callback."""
    checklist: Sequence[Checklist] = ()
    """Rows of the checklist, as decided when the fit began."""
    show: Callable[[str], object] = terminal.show
    """Function that shows a line on the console of rank 0."""


def flat(loaders: Any) -> tuple[Any, ...]:
    """Return all data loaders that are in lists, mappings and Lightning's `CombinedLoader`."""
    loaders = getattr(loaders, "flattened", loaders)
    if isinstance(loaders, dict):
        loaders = [*loaders.values()]
    if isinstance(loaders, list | tuple):
        return tuple([one for loader in loaders for one in flat(loader)])
    return () if loaders is None else (loaders,)
