"""How to make a trainer's evaluations or checkpoints rarer, as its integration knows it."""

import math
from typing import NamedTuple

PLAIN = "one after every {steps} steps"
"""Sentence for a program that makes evaluations or checkpoints itself."""

OFTEN = 3
"""A trainer may save twice at a time, and once more at the end. If spans are even more frequent than an argument asks
for, they are the program's own."""


class Rarer(NamedTuple):
    """Code that makes a trainer's evaluations or checkpoints rarer, such as "TrainingArguments(eval_steps={steps})"."""

    code: str = PLAIN
    """`{steps}` stands for the wanted number of steps, and `{times}` for the argument's new value."""
    value: int = 1
    """Value of the argument now, in units of its own, such as epochs."""
    multiple: int = 1
    """The trainer accepts only a number of steps that is a multiple of this number."""
    apart: float | None = None
    """Number of steps between two evaluations or checkpoints that the argument asks for now. None: unknown."""
    frequency: int = 1
    """A second value now, which `{frequency}` in `code` makes as rare."""

    def written(self, steps: int, factor: int) -> str:
        """Return what makes one evaluation every `steps` steps, `factor` times as rare as now.

        The code would change nothing if the program itself makes most of the evaluations.

        >>> Rarer("Trainer(check_val_every_n_epoch={times})", value=2).written(30, 10)
        'Trainer(check_val_every_n_epoch=20)'
        >>> Rarer("TrainingArguments(save_steps={steps})", multiple=8).written(30, 10)
        'TrainingArguments(save_steps=32)'
        >>> Rarer("TrainingArguments(save_steps={steps})", apart=500).written(30, 10)
        'one after every 30 steps'
        """
        if self.apart is not None and OFTEN * steps < self.apart * factor:
            return PLAIN.format(steps=steps)
        steps = self.multiple * math.ceil(steps / self.multiple)
        return self.code.format(steps=steps, times=factor * self.value, frequency=factor * self.frequency)
