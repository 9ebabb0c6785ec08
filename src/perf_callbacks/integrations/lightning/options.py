"""Arguments of Lightning's trainer that have an effect in a program. Advice names only these."""

import math
from typing import Any

from perf_callbacks.kernel.engine.account import CHECKPOINT, EVALUATION
from perf_callbacks.kernel.fit.rarer import Rarer

PLAIN_PRECISIONS = ("Precision", "FSDPPrecision", "DeepSpeedPrecision")
"""Names of the classes of Lightning's own that stand for the default of the argument `precision`."""


def effective(trainer: Any) -> dict[str, str]:
    """Return the names of the arguments that have an effect, each with the name of the class that takes it."""
    fused = any([getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in trainer.optimizers])
    has_effect = {
        "log_every_n_steps": True,
        "deterministic": True,
        "detect_anomaly": trainer._detect_anomaly,  # noqa: SLF001 Lightning shows it nowhere else
        "num_sanity_val_steps": trainer.enable_validation and trainer.num_sanity_val_steps,
        # with mixed precision, Lightning clips no gradients of a fused optimizer
        "precision": _plain(trainer) and not (fused and trainer.gradient_clip_val),
    }
    takers = {name: "Trainer" for name, effect in has_effect.items() if effect}
    strategy = type(trainer.strategy).__name__
    return takers | ({"bucket_cap_mb": strategy} if strategy == "DDPStrategy" else {})


def fusible(trainer: Any) -> bool:
    """Return False if Lightning clips gradients in mixed precision, which it refuses for a fused optimizer."""
    return not (trainer.gradient_clip_val and hasattr(trainer.precision_plugin, "scaler"))


def _plain(trainer: Any) -> bool:
    """Return True if the trainer's precision is Lightning's default: it refuses the argument beside another plugin."""
    kind = type(trainer.precision_plugin)
    ours = kind.__module__.startswith(("lightning.", "pytorch_lightning."))
    return ours and trainer.precision == "32-true" and kind.__name__ in PLAIN_PRECISIONS


def rarer(trainer: Any) -> dict[str, Rarer]:
    """Return the arguments that make validation and checkpoints rarer, so that the trainer accepts them.

    Lightning rejects a `val_check_interval` that is longer than an epoch, unless `check_val_every_n_epoch` is None. It
    also ends the training if `ReduceLROnPlateau` or `EarlyStopping` finds no metric.
    """
    found: dict[str, Rarer] = {}
    batches, epochs = trainer.val_check_batch, trainer.check_val_every_n_epoch
    whole = trainer.num_training_batches
    of_epoch = whole / trainer.accumulate_grad_batches if math.isfinite(whole) else None
    plateaus = {(plan.interval, plan.frequency) for plan in trainer.lr_scheduler_configs if plan.reduce_on_plateau}
    # `EarlyStopping` turns its default into True if there is a validation in each epoch.
    stops = [stop.strict and stop._check_on_train_epoch_end for stop in trainer.early_stopping_callbacks]  # noqa: SLF001
    if trainer.enable_validation and batches is not None and not any(stops):  # None: the interval is a time
        if epochs is not None and batches >= whole:
            code = "Trainer(check_val_every_n_epoch={times})"
            code += ", and frequency={frequency} in the configuration of ReduceLROnPlateau" * bool(plateaus)
            if len(plateaus) <= 1 and "step" not in dict(plateaus):
                frequency = dict(plateaus).get("epoch", 1)
                found[EVALUATION] = Rarer(code, epochs, apart=of_epoch and epochs * of_epoch, frequency=frequency)
        elif not plateaus:
            code = "Trainer(val_check_interval={times}, check_val_every_n_epoch=None)"
            found[EVALUATION] = Rarer(code, batches, apart=batches / trainer.accumulate_grad_batches)
    callbacks = trainer.checkpoint_callbacks
    if len(callbacks) == 1:
        steps, after = (getattr(callbacks[0], f"_every_n_{name}", None) for name in ("train_steps", "epochs"))
        if steps:
            found[CHECKPOINT] = Rarer("ModelCheckpoint(every_n_train_steps={times})", steps, apart=steps)
        elif after:  # a checkpoint after a validation needs both in the same epoch
            after = math.lcm(after, epochs or 1)
            found[CHECKPOINT] = Rarer(
                "ModelCheckpoint(every_n_epochs={times})", after, apart=of_epoch and after * of_epoch
            )
    return found
