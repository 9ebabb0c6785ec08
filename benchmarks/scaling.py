"""Does `perf-callbacks scaling` equal hand computation, and does it name the part that grows?

    OMP_NUM_THREADS=1 python benchmarks/scaling.py --to out/scaling    # six minutes on one CPU

Trains a tiny model with DistributedDataParallel over gloo on 1, 2 and 4 ranks. Most of a step sleeps, as if a device
worked: the ranks share few cores. The first table compares the command's figures with two other computations: from the
journals' lines, with json alone, and from the loop's own clock, without the callback.

For the second table, ten faults are injected in turn. Each makes one part of the step longer, the more the more ranks
there are. The table shows the part that the command names with 2 and with 4 ranks.
"""

import argparse
import contextlib
import gc
import io
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch._dynamo  # else each forked rank would import it with its optimizer
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from perf_callbacks import PerfConfig
from perf_callbacks.commands import main as command
from perf_callbacks.loop import measure

BATCH, STEPS, RANKS = 8, 150, (1, 2, 4)

USUAL = {"loader": 0.002, "forward": 0.004, "backward": 0.006, "optimizer": 0.002}
"""Seconds that each part of a step sleeps."""

ADDED = 0.008
"""Seconds that a fault adds for each rank after the first."""

FAULTS: dict[str, tuple[str, str, bool]] = {
    "the loader reads more slowly": ("loader", "data_time", True),
    "the loader of one rank reads more slowly": ("loader", "data_time", False),
    "the forward": ("forward", "forward_time", True),
    "the forward of one rank": ("forward", "forward_time", False),
    "a hook in the backward": ("backward", "backward_time", True),
    "the sum of gradients, in DDP's hook": ("sum", "backward_time", True),
    "collectives for a log": ("collectives", "communication_time", True),
    "the optimizer": ("optimizer", "optimizer_time", True),
    "garbage, collected in each step": ("garbage", "gc_time", True),
    "one rank writes a log": ("log", "other_time", False),
}
"""By fault: its place in the program, the part that grows, and if all ranks have it."""


class Sleep(torch.autograd.Function):
    """Passes a tensor through. Forward and backward sleep."""

    @staticmethod
    def forward(ctx, tensor, before, after):
        time.sleep(before)
        ctx.after = after
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.after)
        return gradient, None, None


class Model(nn.Module):
    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.layer, self.sleeps = nn.Linear(16, 16), (forward, backward)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Sleep.apply(self.layer(inputs), *self.sleeps)


class Data(Dataset[torch.Tensor]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, place: int) -> torch.Tensor:
        if place % BATCH == 0:
            time.sleep(self.seconds)
        return torch.ones(16)


class Slow(torch.optim.SGD):
    seconds = 0.0

    def step(self, closure=None):
        time.sleep(self.seconds)
        return super().step(closure)


def train(directory: Path, rank: int, ranks: int, place: str | None) -> None:
    """Train as one rank of a job, with a fault at a place of this rank."""
    added = ADDED * (ranks - 1)
    seconds = {name: usual + added * (name == place) for name, usual in USUAL.items()}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory.absolute()}.store", rank=rank, world_size=ranks)
    model = DistributedDataParallel(Model(seconds["forward"], seconds["backward"]))
    if place == "sum":
        model.register_comm_hook(None, slow_sum(added))
    optimizer = Slow(model.parameters(), lr=0.1)
    optimizer.seconds = seconds["optimizer"]
    loader = DataLoader(Data(seconds["loader"]), batch_size=BATCH)
    gc.freeze()  # so that a collection looks at the garbage alone
    large, garbage, ends = torch.ones(500_000), [[[]] for _ in range(50_000 * (ranks - 1))], []
    config = PerfConfig(output_dir=str(directory), flops="off", checklist="off")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.append(time.perf_counter())
            for _ in range(ranks - 1 if place == "collectives" else 0):
                dist.all_reduce(large)
            if place == "garbage" and ranks > 1:
                gc.collect()
            if place == "log":
                time.sleep(added)
    del garbage
    dist.barrier()
    directory.with_suffix(f".clock{rank}").write_text(json.dumps(ends))
    dist.destroy_process_group()


def slow_sum(seconds: float) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """Return a hook for DDP that sums gradients after a while."""

    def add(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        time.sleep(seconds)
        done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return done.then(lambda found: found.value()[0] / dist.get_world_size())

    return add


def job(directory: Path, ranks: int, fault: str | None = None) -> Path:
    """Record a job: one forked process per rank."""
    place, _, everywhere = FAULTS[fault] if fault is not None else (None, "", True)
    final = directory / f"{'none' if fault is None else list(FAULTS).index(fault)}-{ranks}"
    if final.exists():
        return final
    directory.mkdir(parents=True, exist_ok=True)
    Path(f"{final.absolute()}.store").unlink(missing_ok=True)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            logging.disable()
            with contextlib.redirect_stdout(io.StringIO()):
                train(final, rank, ranks, place if everywhere or rank == ranks - 1 else None)
            os._exit(0)
        children.append(child)
    if any([os.waitpid(child, 0)[1] for child in children]):
        raise RuntimeError(f"{final.name} failed")
    return final


def scaling(words: Sequence[Path | str]) -> dict[int, dict]:
    """Return the points of the command, by number of ranks."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        command(["scaling", *map(str, words), "--json"])
    return {point["devices"]: point for point in json.loads(printed.getvalue())["points"]}


def by_journal(path: Path) -> float:
    """Compute samples per second from the lines of the journals: all samples, over the time of the slowest rank."""
    samples, times = 0.0, []
    for file in sorted((path / "perf_callbacks").glob("rank*.jsonl")):
        blocks = [one for one in map(json.loads, file.read_text().splitlines()) if one["type"] == "steps"]
        times.append(0.0)
        for block in blocks:
            reasons = block.get("excluded") or [None] * len(block["step"])
            for place, reason in enumerate(reasons):
                if reason is None:
                    samples += block["samples"][place]
                    times[-1] += block["step_time"][place]
    return samples / max(times)


def by_clock(path: Path, ranks: int) -> float:
    """Compute samples per second from the loop's own clock: from the end of the first step to the end of the last."""
    spans = [json.loads(path.with_suffix(f".clock{rank}").read_text()) for rank in range(ranks)]
    return ranks * BATCH * (STEPS - 1) / max(ends[-1] - ends[0] for ends in spans)


def equal(paths: Sequence[Path]) -> Iterator[str]:
    """Yield a table of the command's figures beside the other two computations."""
    points = scaling(paths)
    yield "| ranks | samples/s | by the journals' lines | by the loop's clock | efficiency | 95 % interval | by hand |"
    yield "|---|---|---|---|---|---|---|"
    first = by_journal(paths[0])
    for ranks, path in zip(RANKS, paths, strict=True):
        point, hand = points[ranks], by_journal(path)
        ends = "" if point["interval"] is None else " to ".join(f"{end:.4f}" for end in point["interval"])
        yield (
            f"| {ranks} | {point['per_second']:.4f} | {hand:.4f} | {by_clock(path, ranks):.4f} | "
            f"{point['efficiency']:.6f} | {ends} | {hand / ranks / first:.6f} |"
        )
    for path, ranks in zip(paths, RANKS, strict=True):
        itself = scaling([path, "--baseline", path])[ranks]
        low, high = itself["interval"]
        yield f"\nThe run on {ranks} against itself: {itself['efficiency']} ({low:.4f} to {high:.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path("out/scaling"), help="directory of the runs")
    parser.add_argument("--faults", type=int, default=len(FAULTS), help="number of faults to inject")
    arguments = parser.parse_args()
    paths = [job(arguments.to, ranks) for ranks in RANKS]
    print(*equal(paths), sep="\n", flush=True)
    command(["scaling", *map(str, paths)])
    print("\n| fault | part that grows | named, 2 ranks | named, 4 ranks | efficiency | share of the lost time |")
    print("|---|---|---|---|---|---|", flush=True)
    right = 0
    for fault, (_, part, _) in [*FAULTS.items()][: arguments.faults]:
        points = scaling([paths[0], *[job(arguments.to, ranks, fault) for ranks in RANKS[1:]]])
        named = [points[ranks]["grows_most"] for ranks in RANKS[1:]]
        right += named == [part] * len(named)
        largest = points[RANKS[-1]]["growth"][0]
        figures = f"{points[RANKS[-1]]['efficiency']:.3f} | {largest['share'] or 0:.0%}"
        print(f"| {fault} | {part} | {' | '.join(map(str, named))} | {figures} |", flush=True)
    print(f"\n{right} of {arguments.faults} right.")


if __name__ == "__main__":
    main()
