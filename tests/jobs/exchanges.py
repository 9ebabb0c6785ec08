"""Ranks that exchange windows within one process. Their rounds are done by hand."""

import uuid
from dataclasses import replace

import torch.distributed as dist

from perf_callbacks.kernel.engine.windows import Part
from perf_callbacks.kernel.records.fit_records import Window
from perf_callbacks.ranks.exchange import Exchange

LENGTH = 50


class Windows:
    """Keeps the windows that it reads, and does something with each."""

    def __init__(self, exchange, read=lambda _: None):
        self.all, self._read = [], read
        exchange.set_reader(self.window_gathered)

    def window_gathered(self, window):
        self.all.append(window)
        self._read(window)


class ExchangeJob:
    """Ranks of one fit that share a store. They do a round when they are told to."""

    def __init__(
        self, world_size=3, store=None, *, directory=None, nodes=lambda _: None, switches=None, attempt=0, windows=None
    ):
        self.store = dist.HashStore() if store is None else store
        self.world_size, self.now, self.run_id = world_size, 1000.0, uuid.uuid4().hex
        self.ranks = [
            Exchange(
                self.store,
                rank=rank,
                world_size=world_size,
                window=(windows or {}).get(rank, LENGTH),
                run_id=f"own{rank}" if rank else self.run_id,
                directory=None if rank else directory,
                signals=(switches or {}).get(rank, True),
                attempt=attempt,
                node=nodes(rank),
            )
            for rank in range(world_size)
        ]

    def step(self, *numbers):
        """A round of each of some ranks; of all of them, rank 0 first."""
        return [self.ranks[number].rounds.step(self.now) for number in numbers or range(self.world_size)]

    def offer(self, window, *numbers, **changes):
        for rank in numbers or range(self.world_size):
            self.ranks[rank].offer(self.part(window, rank, **changes))

    def part(self, window, rank, **changes):
        size = self.world_size
        part = Part(
            window=window, length=LENGTH, rank=rank, world_size=size, data_parallel=size, steps=LENGTH - 1,
            seconds=10.0 + rank / 8, samples=1000 * window + rank, tokens=None, useful_tokens=7,
        )  # fmt: skip
        return replace(part, **changes)

    def whole(self, window):
        return Window(
            first_step=window * LENGTH + 1,
            last_step=(window + 1) * LENGTH,
            steps=LENGTH - 1,
            ranks=self.world_size,
            seconds=10.0 + (self.world_size - 1) / 8,
            samples=sum(1000 * window + rank for rank in range(self.world_size)),
            tokens=None,
            useful_tokens=7 * self.world_size,
        )

    def lacking(self, window, *missing):
        """The window without some ranks."""
        seconds = 10.0 + max({*range(self.world_size)} - {*missing}) / 8
        gone = {"missing": len(missing), "missing_ranks": missing, "samples": None, "useful_tokens": None}
        return replace(self.whole(window), seconds=seconds, **gone)

    def through(self, window, **changes):
        """All ranks go through a window, and look often enough to know of each other."""
        self.offer(window, **changes)
        for _ in range(3):
            self.step()
            self.now += 1

    @property
    def latest(self):
        return [exchange.latest for exchange in self.ranks]

    @property
    def failures(self):
        return [exchange.failure for exchange in self.ranks]

    def end(self):
        """Every rank leaves, as its thread would."""
        for rank, exchange in enumerate(self.ranks):
            self.leave(rank)
            exchange.close()

    def leave(self, rank):
        self.ranks[rank].rounds.leave()
