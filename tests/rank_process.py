"""One rank of a job, in a process of its own: it goes through steps without training anything, and exchanges.

What it did is left in a file. It ends when it may: when a file says so.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from perf_callbacks.kernel.engine.windows import Part
from perf_callbacks.ranks import rounds
from perf_callbacks.ranks.exchange import Exchange
from perf_callbacks.ranks.store import default_store


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a rank is to do."""

    directory: str
    port: int | None
    """Port of the store. None: a launcher says so, and says the rank."""
    rank: int
    world_size: int
    steps: int = 100
    window: int = 10
    step_seconds: float = 0.01
    exchanging: bool = True
    lockstep: bool = False
    wait: bool = True
    closing: bool = True
    destroying: bool = True
    dies_at: int | None = None
    """Step of the first attempt at which rank 1 dies."""
    deadline: float = rounds.DEADLINE_SECONDS


def samples(rank, step):
    """Uneven, as batches at the end of an epoch."""
    return 4 + (7 * rank + step * step) % 11


class Timed:
    """Calls of the exchange, and how long the longest one took."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.longest = 0.0

    def __call__(self, name: str, *args: Any) -> Any:
        began = time.perf_counter()
        found = getattr(self._exchange, name)
        value = found(*args) if callable(found) else found
        self.longest = max(self.longest, time.perf_counter() - began)
        return value


def part(plan, window, length):
    steps = range(window * length + 1, (window + 1) * length + 1)
    seen = [samples(plan.rank, step) for step in steps]
    return Part(
        window=window,
        length=length,
        rank=plan.rank,
        world_size=plan.world_size,
        data_parallel=plan.world_size,
        steps=length,
        seconds=length * plan.step_seconds,
        samples=sum(seen),
        tokens=sum(seen) * 16,
        useful_tokens=torch.tensor(sum(seen) * 9),
        model_flops=sum(seen) * 600,
        hardware_flops=sum(seen) * 800,
    )


def train(plan, timed, told):
    """Go through the steps; what was taken for the journal."""
    taken, longest = [], 0.0
    for step in range(1, plan.steps + 1):
        if (plan.rank, step, attempt()) == (1, plan.dies_at, 0):
            os._exit(1)
        began = time.perf_counter()
        time.sleep(plan.step_seconds)
        if plan.lockstep:
            dist.all_reduce(torch.ones(1))
        length = timed("window") if timed else None
        if length and step % length == 0:
            timed("offer", part(plan, step // length - 1, length))
            timed("latest")
            taken += [asdict(window) for window in timed("take")]
        longest = max(longest, time.perf_counter() - began)
        told(step=step, longest_step=longest)
    return taken


def attempt():
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def main(plan):
    directory = Path(plan.directory)
    facts: dict[str, Any] = {}

    def told(**more):
        facts.update(more)
        new = directory / f"rank{plan.rank}.new"
        new.write_text(json.dumps(facts))
        new.replace(directory / f"rank{plan.rank}.json")

    rounds.DEADLINE_SECONDS = plan.deadline
    method = "env://" if plan.port is None else f"tcp://127.0.0.1:{plan.port}"
    dist.init_process_group("gloo", init_method=method, rank=plan.rank, world_size=plan.world_size)
    dist.barrier()
    exchange = timed = None
    if plan.exchanging:
        store, run_id = default_store(), f"run{plan.rank}"
        exchange = Exchange(store, rank=plan.rank, world_size=plan.world_size, window=plan.window, run_id=run_id)
        del store
        timed = Timed(exchange)
        timed("start")
        began = time.perf_counter()
        settings = exchange.agree()
        told(agree_seconds=time.perf_counter() - began, run_id=settings and settings.run_id)
    taken = train(plan, timed, told)
    if exchange is not None:
        length = exchange.window or plan.window
        last = plan.steps // length * length

        def complete():
            return exchange.failure or (exchange.latest and exchange.latest.last_step == last)

        until(lambda: complete() or (directory / f"end{plan.rank}").exists())
        taken += [asdict(window) for window in timed("take")]
        told(
            taken=taken,
            latest=exchange.latest and asdict(exchange.latest),
            failure=exchange.failure,
            attempt=attempt(),
        )
    told(done=True)
    if plan.wait:
        until((directory / f"end{plan.rank}").exists)
    if plan.port is None:
        dist.barrier()  # rank 0 may hold the store
    if exchange is not None:
        if plan.closing:
            timed("close")
        told(longest_call=timed.longest)
    if plan.destroying:
        dist.destroy_process_group()


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[1]))
    main(replace(plan, rank=int(os.environ["RANK"])) if plan.port is None else plan)
