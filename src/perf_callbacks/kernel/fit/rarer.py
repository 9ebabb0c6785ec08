"""How to make a trainer's evaluations or checkpoints rarer, as its integration knows it."""

import math
from typing import NamedTuple


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
