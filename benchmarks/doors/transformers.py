"""The Hugging Face `Trainer`."""

from collections.abc import Callable

import peers
import torch
from network import ROWS_EVERY, Classifier, Rows
from transformers import Trainer, TrainerCallback, TrainingArguments
from turns import NONE, Switch, Turns

from perf_callbacks import PerfConfig
from perf_callbacks.transformers import PerfCallback

BATCH = {"input_ids": torch.zeros(4, 8, dtype=torch.long), "labels": torch.zeros(4, dtype=torch.long)}


class Driver(TrainerCallback):
    """Stays, and switches others on and off."""

    def __init__(self, cycles: int, directory: str) -> None:
        self.mine = PerfCallback(PerfConfig(output_dir=directory))
        self.other: TrainerCallback | None = None
        others = {"an empty callback": TrainerCallback, **peers.transformers_callbacks(BATCH)}
        self.turns = Turns(
            {
                "nothing": NONE,
                "nothing again": NONE,
                "ours": (self.ours, self.not_ours),
                **{name: self.another(make) for name, make in others.items()},
            },
            cycles,
        )

    def on_step_end(self, args, state, control, **_):
        self.at = args, state, control
        self.turns.step()

    def train(self, trainer: Trainer) -> None:
        self.trainer, self.kept = trainer, [*trainer.callback_handler.callbacks]
        trainer.train()

    def use(self, *callbacks: TrainerCallback) -> None:
        self.trainer.callback_handler.callbacks = [*callbacks, *self.kept]

    def ours(self) -> None:
        self.use(self.mine)
        self.mine.begin(self.at[0], self.at[1], self.trainer)

    def not_ours(self) -> None:
        self.mine.on_train_end(*self.at)
        self.use()

    def another(self, make: Callable[[], TrainerCallback]) -> tuple[Switch, Switch]:
        def begin() -> None:
            self.other = make()
            self.other.on_train_begin(*self.at, model=self.trainer.model)
            self.use(self.other)

        def end() -> None:
            self.other.on_train_end(*self.at)
            self.use()

        return begin, end


def run(cycles: int, directory: str) -> Turns:
    driver = Driver(cycles, directory)
    arguments = TrainingArguments(
        output_dir=directory,
        max_steps=driver.turns.steps,
        per_device_train_batch_size=4,
        logging_steps=ROWS_EVERY,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    driver.train(Trainer(model=Classifier(), args=arguments, train_dataset=Rows(), callbacks=[driver]))
    return driver.turns
