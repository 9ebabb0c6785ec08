"""The counted step: that it changes nothing, that its end is heard of, what it costs, that compiled models stay so."""

import contextlib
import os
import statistics
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpu.bench import Bench, Row, train
from gpu.models import Case, llama, stack
from perf_callbacks.flops.count_window import CountWindow
from perf_callbacks.flops.counter import FlopCounter

COLUMNS = ("what", "result")


def same(bench: Bench) -> Iterator[Row]:
    """Whether losses and weights are the same, to the last bit, where the count falls into the second of six steps."""
    with _deterministic():
        off, again, counted = (_trained(bench, flops) for flops in ("off", "off", "count"))
    for name, other in (("off, again (the control)", again), ("count", counted)):
        equal = [bool(torch.equal(a, b)) for a, b in zip(off, other, strict=True)]
        yield (
            f'flops="off" and {name}',
            f"{sum(equal[:6])} of 6 losses and the weights {_either(equal[-1])} bitwise equal",
        )


def _either(equal: bool) -> str:  # noqa: FBT001 it is the only thing
    return "are" if equal else "are not"


def _trained(bench: Bench, flops: str) -> list[torch.Tensor]:
    """The losses of six steps, and all weights after them."""
    case, losses = llama(bench, batch=2, length=512), []
    noted = SimpleNamespace(model=case.model, optimizer=case.optimizer)
    noted.step = lambda batch: losses.append(case.step(batch))
    train(bench, noted, [case.batch] * 6, bench.config(flops=flops))
    return [*losses, torch.cat([one.detach().flatten() for one in case.model.parameters()])]


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """The backward of fused attention adds in any order otherwise. What can't be so is found by the control."""
    before = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG")
        os.environ |= {} if before is None else {"CUBLAS_WORKSPACE_CONFIG": before}


def ended(bench: Bench) -> Iterator[Row]:
    """Whether the end of the backward was heard of, in all ways in which it may run."""
    for checkpointing in ("none", "early", "reentrant"):
        yield _ended(llama(bench, checkpointing))
    with _one_rank(bench):
        case = llama(bench)
        case.name += f", DDP over {dist.get_backend()}"
        case.model = DistributedDataParallel(case.model)
        yield _ended(case)


def _ended(case: Case) -> Row:
    case.step(case.batch)
    counter = _counted(case)
    work = counter.work()
    found = f"{work.model_flops / case.model_flops:.6f}, {work.hardware_flops / case.hardware_flops:.6f}"
    errors = f", errors {dict(counter.errors)}" if counter.errors else ""
    return case.name, f"interrupted: {counter.interrupted}; counted / by hand {found}{errors}"


def _counted(case: Case) -> FlopCounter:
    """A step, counted."""
    window = CountWindow()
    window.open()
    try:
        case.step(case.batch)
    finally:
        window.close()
    return window.counter


@contextlib.contextmanager
def _one_rank(bench: Bench) -> Iterator[None]:
    dist.init_process_group("nccl" if bench.cuda else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def cost(bench: Bench) -> Iterator[Row]:
    """A counted step between two others."""
    for case in (llama(bench), llama(bench, batch=1, length=64)):
        yield _cost(bench, case)


def _cost(bench: Bench, case: Case) -> Row:
    ratios, normal = [], []
    for _ in range(bench.pick(12, 2)):
        around = [bench.cost(lambda: case.step(case.batch))]
        counted = bench.cost(lambda: _counted(case))
        around.append(bench.cost(lambda: case.step(case.batch)))
        ratios.append(counted / statistics.mean(around))
        normal += around
    ratios, step = ratios[1:], statistics.median(normal)  # the first one is for warming up
    return case.name, f"{statistics.median(ratios):.3f} times a step of {step * 1e3:.2f} ms, of {len(ratios)} counted"


def compiled(bench: Bench) -> Iterator[Row]:
    """How often what was compiled is called, step by step, and how many graphs there are at the end."""
    from torch._dynamo.utils import counters

    for flops in ("off", "count"):
        torch.compiler.reset()
        counters.clear()
        calls: list[bool] = []
        case = stack(bench, *bench.pick((4, 1024, 1024), (2, 64, 64)))
        case.model = torch.compile(case.model, backend=_backend(bench, calls))
        before, per_step, graphs = [0], [], []

        def after(*_: object) -> None:
            per_step.append(len(calls) - before[0])  # noqa: B023 called before the next turn
            before[0] = len(calls)  # noqa: B023
            graphs.append(counters["stats"]["unique_graphs"])  # noqa: B023

        train(bench, case, [case.batch] * 6, bench.config(flops=flops), after)
        yield f'flops="{flops}"', f"calls by step {per_step}; graphs after each step {graphs}"


def _backend(bench: Bench, calls: list[bool]) -> Callable[..., Any]:
    """Torch's own compiler, and a note of each call; without a GPU nothing is compiled, and calls are noted."""

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        if bench.cuda:
            from torch._inductor.compile_fx import compile_fx

            inner = compile_fx(graph, inputs)
        else:
            inner = graph.forward

        def noted(*args: object) -> object:
            calls.append(True)
            return inner(*args)

        return noted

    return backend
