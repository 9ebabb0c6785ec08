"""Integration for the Lightning `Trainer` of `lightning.pytorch`.

from perf_callbacks.lightning import PerfCallback

trainer = Trainer(..., callbacks=[PerfCallback()])
"""

from lightning.pytorch.callbacks import Callback

from perf_callbacks.integrations.lightning.hooks import LightningHooks

__all__ = ["PerfCallback"]


class PerfCallback(LightningHooks, Callback):
    """Measures the stages of each optimizer step, and logs their times beside the loss.

    Metrics named `perf/*` go to every logger of the trainer every `log_every_n_steps` steps, at the step of the loss.
    `perf/step_time` also goes to the progress bar. A row of metrics covers the steps since the previous row,
    except the first step of the fit and steps with a validation or a checkpoint. Under manual optimization a step is a
    batch.

    Data is the wait for the loader and `batch_to_device`. Forward is `training_step`. Under manual optimization,
    forward excludes `manual_backward` and the `step` and `zero_grad` of `self.optimizers()`, and includes a scheduler's
    step.

    Hooks of callbacks and of the module count as other. The exceptions are hooks that do the work of a stage: for
    example, `optimizer_zero_grad`, `configure_gradient_clipping` and `lr_scheduler_step` count as optimizer.

    While `fit` runs, the callback replaces methods of the trainer and its parts, the module and the optimizers to see
    the stages. All methods are restored when `fit` ends, even after an exception. If a trainer has several of these
    callbacks, only the first enabled callback measures.

    For a trainer of `pytorch_lightning`, use `perf_callbacks.pytorch_lightning`.
    """

    framework = "lightning"


class ArmedCallback(PerfCallback):
    """Callback that a launcher, such as `perf-callbacks run`, adds to every trainer of a program."""

    armed = True
