"""Short training with the Hugging Face `Trainer`, with or without the callback."""

from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.launch.cost import network
from perf_callbacks.launch.cost.turns import STEPS, Stopwatch
from perf_callbacks.transformers import PerfCallback


class _Steps(TrainerCallback):
    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._stopwatch.step_ended()


def train(directory: str, stopwatch: Stopwatch, *, armed: bool) -> None:
    """Train for `STEPS` steps with the Hugging Face `Trainer`. If `armed` is True, the callback measures."""
    arguments = TrainingArguments(
        output_dir=directory,
        max_steps=STEPS,
        per_device_train_batch_size=network.BATCH_SIZE,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    callbacks: list[TrainerCallback] = [PerfCallback(PerfConfig(output_dir=directory))] if armed else []
    Trainer(
        model=network.Classifier(),
        args=arguments,
        train_dataset=network.Rows(),
        callbacks=[*callbacks, _Steps(stopwatch)],
    ).train()
