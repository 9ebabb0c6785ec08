"""CUDA graphs that a user captures within a measured loop: do they succeed, and do they compute the same."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from gpu.bench import NEEDS_CUDA, Bench, Row, attempted, one_line, records
from gpu.models import Stack
from gpu.placement import side_stream
from perf_callbacks.kernel.records.fit_records import Steps, Summary
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.loop import measure

COLUMNS = ("what is captured", "what", "result")

WARM = 3
"""Steps before the capture, on a side stream, as torch's documentation asks for."""

Step = Callable[[], object]


@dataclass
class Outcome:
    """Result of a loop."""

    losses: list[torch.Tensor] = field(default_factory=list)
    weights: torch.Tensor | None = None
    error: str | None = None
    """Error that ended the loop. None: there was none."""
    summary: Summary | None = None

    def beside(self, other: "Outcome") -> str:
        """Say how far two loops computed the same."""
        equal = sum(bool(torch.equal(a, b)) for a, b in zip(self.losses, other.losses, strict=False))
        if self.weights is None or other.weights is None:
            return "no weights to compare: a loop ended with an error"
        either = "are" if torch.equal(self.weights, other.weights) else "are not"
        return f"{equal} of {len(self.losses)} losses and the weights {either} bitwise equal"


def captures(bench: Bench) -> Iterator[Row]:
    """Captures of the whole step and of forward and backward, each without the callback, again, and with it."""
    if not bench.cuda:
        yield "all of these", "", f"{NEEDS_CUDA}: a stand-in computes each replay anew"
    kinds = {"whole step": True, "forward and backward": False}
    for kind, whole in bench.allowance.each([*kinds.items()]):
        yield from attempted(bench, kind, partial(_captured, bench, kind, whole=whole))


def _captured(bench: Bench, kind: str, *, whole: bool) -> Iterator[Row]:
    config, steps = bench.config(), bench.pick(40, 8)
    alone, again, ours = (_loop(bench, one, steps, whole=whole) for one in (None, None, config))
    yield kind, "capture without the callback", alone.error or "succeeds"
    yield kind, "capture with the callback", ours.error or "succeeds"
    yield kind, "without the callback, twice (the control)", alone.beside(again)
    yield kind, "without and with the callback", alone.beside(ours)
    summary = ours.summary
    if summary is None:
        yield kind, "summary", "None"
        return
    reasons = Counter(one for block in records(config, Steps) for one in block.excluded if one)
    said = f"{summary.steps} steps, {summary.included_steps} included, {summary.lost_steps} lost"
    yield kind, f"summary of {steps} steps, {steps - WARM} of them replays", f"{said}; left out: {dict(reasons)}"
    stages = {name: round(seconds * 1000, 3) for name, seconds in summary.stage_seconds.items() if seconds}
    yield kind, "stages, ms; MFU; failure", f"{stages}; {summary.mfu}; {summary.failure}"


def _loop(bench: Bench, config: PerfConfig | None, steps: int, *, whole: bool) -> Outcome:
    """Train with a graph that is captured after the warm-up."""
    torch.manual_seed(0)
    layers, wide, rows = bench.pick((8, 2048, 1024), (2, 32, 16))
    with bench.device:
        model = Stack(layers, wide, torch.float32)
        batches = [torch.randn(rows, wide) for _ in range(4)]
        static = torch.zeros(rows, wide)
    capturable = {"capturable": True} if bench.cuda else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **capturable)
    loader = [batches[number % len(batches)] for number in range(steps)]
    outcome, kept = Outcome(), list[torch.Tensor]()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = model(static).loss
        kept[:] = [loss]
        loss.backward()
        if whole:
            optimizer.step()

    perf = measure(model=model, optimizer=optimizer, loader=loader, config=config or bench.config())
    measured: Any = contextlib.nullcontext() if config is None else perf
    side = side_stream(bench)
    try:
        with contextlib.redirect_stdout(None), measured:
            replay: Step = step
            for number, batch in enumerate(loader if config is None else perf.loader):
                if number == WARM:
                    bench.synchronize()
                    replay = _capture(bench, step)
                with side() if number < WARM else contextlib.nullcontext():
                    static.copy_(batch)
                    replay()
                    if not whole:
                        optimizer.step()
                bench.synchronize()  # the streams of warm-up and replay share tensors
                outcome.losses.append(kept[0].detach().clone())
        outcome.weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    except RuntimeError as error:
        outcome.error = one_line(error)
        if bench.cuda:  # a capture that fails leaves its stream as the current one
            torch.cuda.set_stream(torch.cuda.default_stream(bench.device))
    outcome.summary = None if config is None else perf.summary
    return outcome


def _capture(bench: Bench, step: Step) -> Step:
    """Capture a step; the function that replays it."""
    if bench.cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay
    if bench.simulated:
        with sys.modules["simulated_device"].DEVICE.capture():
            step()
    return step
