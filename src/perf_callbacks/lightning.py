"""Integration for the Lightning `Trainer` of `lightning.pytorch`.

from perf_callbacks.lightning import PerfCallback

trainer = Trainer(..., callbacks=[PerfCallback()])
"""

from lightning.pytorch.callbacks import Callback

from perf_callbacks.integrations.lightning.hooks import LightningHooks

__all__ = ["PerfCallback"]


class PerfCallback(LightningHooks, Callback):
    """Measures the stages of each optimizer step, such as forward and backward, and logs their times beside the loss.

    Every `log_every_n_steps` steps, all loggers of the trainer get metrics named `perf/*`, with the step number of the
    loss. `perf/step_time` also goes to the progress bar. The metrics cover the steps since the previous log. The first
    step of the fit is left out, and so is every step with a validation or a checkpoint. Under manual optimization, each
    batch counts as a step.

    The stage `data` is the wait for the loader, plus the time in `batch_to_device`. The stage `forward` is the time in
    `training_step`. Under manual optimization, `forward` excludes `manual_backward`, and the optimizers' `step` and
    `zero_grad`. A scheduler's step belongs to `forward` under manual optimization, and to `optimizer` otherwise.

    The time in most hooks of callbacks and of the module belongs to the stage `other`. But a hook that does the work of
    a stage belongs to this stage. For example, `optimizer_zero_grad`, `configure_gradient_clipping` and
    `lr_scheduler_step` belong to the stage `optimizer`.

    While `fit` runs, the callback replaces methods of the trainer, the module and the optimizers. So the callback sees
    when each stage begins and ends. All methods are restored when `fit` ends, even after an exception. If a trainer has
    several callbacks of this class, only the first enabled callback measures.

    For a trainer of `pytorch_lightning`, use `perf_callbacks.pytorch_lightning`.
    """


class ArmedCallback(PerfCallback):
    """Callback that a launcher, such as `perf-callbacks run`, adds to every trainer of a program."""

    armed = True
