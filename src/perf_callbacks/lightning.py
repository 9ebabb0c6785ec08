"""Integration for the Lightning `Trainer` of `lightning.pytorch`.

from perf_callbacks.lightning import PerfCallback

trainer = Trainer(..., callbacks=[PerfCallback()])
"""

from lightning.pytorch.callbacks import Callback

from perf_callbacks.integrations.lightning.hooks import LightningHooks

__all__ = ["PerfCallback"]


class PerfCallback(LightningHooks, Callback):
    """Measures the stages of each optimizer step, and logs their times beside the loss.

    Metrics named `perf/*` go to every logger of the trainer each `log_every_n_steps`, at the step of the loss, and
    `perf/step_time` to the progress bar. A row covers the steps since the previous row, except the first step of the
    fit and steps with a validation or a checkpoint. Under manual optimization a step is a batch.

    Data is the wait for the loader and `batch_to_device`. Forward is `training_step`. Under manual optimization it
    excludes `manual_backward` and the `step` and `zero_grad` of `self.optimizers()`, and includes a scheduler's step.
    Hooks of callbacks and of the module are other, except hooks that do the work of a stage, such as
    `optimizer_zero_grad`, `configure_gradient_clipping` and `lr_scheduler_step`, which belong to the optimizer.

    While `fit` runs, the callback replaces methods of the trainer's loops, strategy and precision plugin to see the
    stages. All are restored when `fit` ends, even after an exception. If a trainer has two of these callbacks, only the
    first measures.

    For a trainer of `pytorch_lightning`, use `perf_callbacks.pytorch_lightning`.
    """

    framework = "lightning"


class ArmedCallback(PerfCallback):
    """Callback that every trainer gets in a program that is armed from outside."""

    armed = True
