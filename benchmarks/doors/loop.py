"""A plain loop."""

import contextlib
import time
from collections.abc import Callable

import peers
import torch
from network import network
from torch import nn
from turns import NONE, Turns

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure


class MegatronTimers:
    """As Megatron's at level 1 without barriers: start, stop, and a sum."""

    def __init__(self) -> None:
        self.elapsed = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self.began: dict[str, float] = {}

    def start(self, name: str) -> None:
        self.began[name] = time.time()

    def stop(self, name: str) -> None:
        self.elapsed[name] += time.time() - self.began.pop(name)


class Batches:
    """The same one, again and again."""

    def __init__(self) -> None:
        self.batch = {"input_ids": torch.randint(0, 64, (4, 8)), "labels": torch.randint(0, 16, (4,))}

    def __iter__(self):
        while True:
            yield self.batch


class Loop:
    """A model, its optimizer, and who takes a step of theirs now."""

    def __init__(self) -> None:
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batches = Batches()
        self.back()

    def back(self) -> None:
        """Nobody measures."""
        self.loader, self.step = iter(self.batches), self.plain

    def plain(self, inputs) -> None:
        loss = nn.functional.cross_entropy(self.model(inputs["input_ids"]), inputs["labels"])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def timed(self) -> peers.Step:
        """The same, with Megatron's timers."""
        timers = MegatronTimers()

        def step(inputs) -> None:
            timers.start("forward")
            loss = nn.functional.cross_entropy(self.model(inputs["input_ids"]), inputs["labels"])
            timers.stop("forward")
            timers.start("backward")
            loss.backward()
            timers.stop("backward")
            timers.start("optimizer")
            self.optimizer.step()
            self.optimizer.zero_grad()
            timers.stop("optimizer")

        return step


def run(cycles: int, directory: str) -> Turns:
    training, measured = Loop(), contextlib.ExitStack()
    config = PerfConfig(output_dir=directory)

    def ours() -> None:
        perf = measure(model=training.model, optimizer=training.optimizer, loader=training.batches, config=config)
        training.loader = iter(measured.enter_context(perf).loader)

    def not_ours() -> None:
        measured.close()
        training.back()

    def another(make: Callable[[], peers.Step]) -> Callable[[], None]:
        def begin() -> None:
            training.step = make()

        return begin

    others = {"Megatron's timers": training.timed, **peers.loops(training.plain, training.model)}
    turns = Turns(
        {
            "nothing": NONE,
            "nothing again": NONE,
            "ours": (ours, not_ours),
            **{name: (another(make), training.back) for name, make in others.items()},
        },
        cycles,
    )
    for _ in range(turns.steps):
        training.step(next(training.loader))
        turns.step()
    return turns
