"""Short training loop with Accelerate, with or without the callback."""

from contextlib import nullcontext

from accelerate import Accelerator  # type: ignore[import-untyped]
from torch.utils.data import DataLoader

from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.launch.cost import network
from perf_callbacks.launch.cost.turns import STEPS, Stopwatch


def train(directory: str, stopwatch: Stopwatch, *, armed: bool) -> None:
    """Train for `STEPS` steps in a loop with Accelerate. If `armed` is True, the callback measures the training."""
    accelerator, made = Accelerator(), network.Classifier()
    loader = DataLoader(network.Rows(), batch_size=network.BATCH_SIZE)
    model, optimizer, loader = accelerator.prepare(made, network.optimizer_of(made), loader)
    with attach(accelerator, PerfConfig(output_dir=directory)) if armed else nullcontext():
        for _, batch in zip(range(STEPS), loader, strict=False):
            accelerator.backward(network.loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            stopwatch.step_ended()
