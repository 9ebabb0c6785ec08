"""The door for the Lightning `Trainer` of `lightning.pytorch`.

from perf_callbacks.lightning import PerfCallback

trainer = Trainer(..., callbacks=[PerfCallback()])
"""

from lightning.pytorch.callbacks import Callback

from perf_callbacks.integrations.lightning_hooks import LightningHooks

__all__ = ["PerfCallback"]


class PerfCallback(LightningHooks, Callback):
    """Measures what each optimizer step does with its time, and logs it beside the loss.

    Metrics named `perf/*` go to every logger of the trainer each `log_every_n_steps`, at the step of the loss, and
    `perf/step_time` to the progress bar. A row covers the steps since the row before it, without the first step and
    without those in which a validation or a checkpoint fell. Under manual optimization a step is a batch.

    Data is the wait for the loader and `batch_to_device`. Forward is `training_step`, under manual optimization without
    `manual_backward` and the `step` and `zero_grad` of `self.optimizers()`; a scheduler that it steps is in there.
    Hooks of callbacks and of the module are other, except those that are a stage of their own, such as
    `optimizer_zero_grad`, `configure_gradient_clipping` and `lr_scheduler_step`, which belong to the optimizer.

    While `fit` runs, methods of the trainer's loops, strategy and precision plugin are replaced on these objects to see
    the stages. They are put back when it ends, however it ends. Of two in one trainer only the first measures.

    For a trainer of `pytorch_lightning`, use `perf_callbacks.pytorch_lightning`.
    """

    framework = "lightning"


class ArmedCallback(PerfCallback):
    """The callback that every trainer gets in a program that is armed from outside."""

    armed = True
