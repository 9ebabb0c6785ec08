"""The Lightning `Trainer`."""

from collections.abc import Callable

import peers
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from network import ROWS_EVERY, Classifier, Rows
from torch.utils.data import DataLoader
from turns import NONE, Switch, Turns

from perf_callbacks import PerfConfig
from perf_callbacks.lightning import PerfCallback


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Classifier()
        self.flops_per_batch = 1000

    def training_step(self, batch, _):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Driver(Callback):
    """Stays, and switches others on and off."""

    def __init__(self, cycles: int, directory: str) -> None:
        self.mine = PerfCallback(PerfConfig(output_dir=directory))
        self.other: Callback | None = None
        others = {
            "an empty callback": Callback,
            "ThroughputMonitor": lambda: ThroughputMonitor(batch_size_fn=lambda batch: len(batch["labels"])),
            **peers.lightning_callbacks(),
        }
        self.turns = Turns(
            {
                "nothing": NONE,
                "nothing again": NONE,
                "ours": (self.ours, self.not_ours),
                **{name: self.another(make) for name, make in others.items()},
            },
            cycles,
        )

    def on_train_batch_end(self, trainer, module, *_):
        self.at = trainer, module
        self.turns.step()

    def use(self, *callbacks: Callback) -> None:
        self.at[0].callbacks = [*callbacks, self]

    def ours(self) -> None:
        self.use(self.mine)
        self.mine.begin(self.at[0])

    def not_ours(self) -> None:
        self.mine.on_train_end(*self.at)
        self.use()

    def another(self, make: Callable[[], Callback]) -> tuple[Switch, Switch]:
        def begin() -> None:
            self.other = make()
            self.other.setup(*self.at, "fit")
            self.other.on_train_start(*self.at)
            self.use(self.other)

        def end() -> None:
            self.other.teardown(*self.at, "fit")
            self.use()

        return begin, end


def run(cycles: int, directory: str) -> Turns:
    driver = Driver(cycles, directory)
    trainer = Trainer(
        max_steps=driver.turns.steps,
        accelerator="cpu",
        logger=CSVLogger(directory),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=ROWS_EVERY,
        callbacks=[driver],
    )
    trainer.fit(Module(), DataLoader(Rows(), batch_size=4))
    return driver.turns
