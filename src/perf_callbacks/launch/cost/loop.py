"""Short training with a plain PyTorch loop, with or without the callback."""

from contextlib import nullcontext

from torch.utils.data import DataLoader

from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.launch.cost import network
from perf_callbacks.launch.cost.turns import STEPS, Stopwatch
from perf_callbacks.loop import Measurement, measure


def train(directory: str, stopwatch: Stopwatch, *, armed: bool) -> None:
    """Train for `STEPS` steps with a plain PyTorch loop. If `armed` is True, the callback measures the training."""
    model = network.Classifier()
    optimizer, loader = network.optimizer_of(model), DataLoader(network.Rows(), batch_size=network.BATCH_SIZE)
    config = PerfConfig(output_dir=directory)
    measured = measure(model=model, optimizer=optimizer, loader=loader, config=config) if armed else nullcontext()
    with measured as perf:
        batches = perf.loader if isinstance(perf, Measurement) else loader
        for _, batch in zip(range(STEPS), batches, strict=False):
            network.loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            stopwatch.step_ended()
