"""Integration for the Lightning `Trainer` of `pytorch_lightning`.

from perf_callbacks.pytorch_lightning import PerfCallback

trainer = Trainer(..., callbacks=[PerfCallback()])
"""

from pytorch_lightning.callbacks import Callback

from perf_callbacks.integrations.lightning.hooks import LightningHooks

__all__ = ["PerfCallback"]


class PerfCallback(LightningHooks, Callback):
    """Measures the stages of each optimizer step, such as forward and backward, and logs their times beside the loss.

    This callback works like `perf_callbacks.lightning.PerfCallback`, the callback for `lightning.pytorch`.
    """


class ArmedCallback(PerfCallback):
    """Callback that a launcher, such as `perf-callbacks run`, adds to every trainer of a program."""

    armed = True
