"""Numbers beside an independent truth: FLOPs by hand, events recorded here, weights without the callback."""

import contextlib
import itertools
import os
import statistics
import subprocess
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from gpu.bench import DENSE_BF16, NEEDS_CUDA, Bench, Row, one_line, records, train
from gpu.models import Case, llama, small, stack
from perf_callbacks.flops.peaks import matmul_peak
from perf_callbacks.kernel.process import device
from perf_callbacks.kernel.records.fit_records import Flops, Run, Steps

FIRST = 2
"""The first step and the counted one are in no figure."""

ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "power.limit", "temperature.gpu")


def machine(bench: Bench) -> Iterator[Row]:
    """The versions, the clocks under load, and the best product beside the published peak."""
    yield "torch", torch.__version__
    yield "CUDA, as torch was built", str(torch.version.cuda or NEEDS_CUDA)
    yield "device", device.of(bench.device).name
    if not bench.cuda:
        yield "driver, clock, best product", NEEDS_CUDA
        return
    matrix = torch.randn(8192, 8192, device=bench.device, dtype=torch.bfloat16)
    for _ in range(1000):  # more than a second of work, that goes on meanwhile
        torch.mm(matrix, matrix)
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader", "-i", "0"]
    try:
        yield (
            ", ".join(ASKED),
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        yield ", ".join(ASKED), one_line(error)
    bench.synchronize()
    best = matmul_peak.measure(bench.device, ["bfloat16"])["bfloat16"]
    share = f"{best.flops_per_second / DENSE_BF16:.1%} of 989.5"
    yield "best bf16 product", f"{best.flops_per_second / 1e12:.1f} TFLOPS, {share}, {best.size} x {best.size}"


class Stamped(Case):
    """A step that notes when forward and backward begin and end."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self.__dict__ |= case.__dict__
        self.stamps: list[list[Any]] = []
        self._stamp = bench.stamp

    def step(self, batch: dict[str, Any]) -> None:
        noted = [self._stamp()]
        loss = self.model(**batch).loss
        noted.append(self._stamp())
        loss.backward()
        noted.append(self._stamp())
        self.optimizer.step()
        self.stamps.append([*noted, self._stamp()])
        self.optimizer.zero_grad()


COLUMNS = ("case", "what", "truth", "ours", "difference", "worst step")


def truth(bench: Bench) -> Iterator[Row]:
    """FLOPs by hand and times between events that are recorded here, beside the callback's."""
    for make in (small, lambda bench: stack(bench, *bench.pick((16, 8192, 8192), (3, 64, 64))), llama):
        case, steps, config = Stamped(make(bench), bench), bench.pick(40, 6), bench.config(gc="observe")
        summary = train(bench, case, [case.batch] * steps, config).summary
        counted, blocks = records(config, Flops)[0], records(config, Steps)
        flops = {"model": case.model_flops, "hardware": case.hardware_flops}
        for name, by_hand in flops.items():
            yield case.name, f"{name} FLOPs", f"{by_hand}", f"{getattr(counted, f'{name}_flops')}"
        clock = records(config, Run)[0].timeline
        yield case.name, "not counted; lost; clock", "", f"{dict(counted.uncounted)}; {summary.lost_steps}; {clock}"
        events = {"step_time": [bench.seconds(a[-1], b[-1]) for a, b in itertools.pairwise(case.stamps)]}
        for place, name in enumerate(("forward_time", "backward_time")):
            events[name] = [bench.seconds(one[place], one[place + 1]) for one in case.stamps[1:]]
        for name, seconds in events.items():
            column = [one for block in blocks for one in getattr(block, name) or [None] * len(block.step)]
            apart = [(ours - true) * 1e6 for ours, true in zip(column[FIRST:], seconds[1:], strict=True) if ours]
            true, worst = statistics.median(seconds[1:]), f"{max(apart, key=abs):+.2f} us of {len(apart)} steps"
            yield (
                case.name,
                name,
                f"{true * 1e3:.4f} ms",
                *_beside(true, true + statistics.median(apart) / 1e6, 1e3),
                worst,
            )
        step = statistics.fmean(events["step_time"][1:])
        for name, work in zip(("mfu", "hfu"), flops.values(), strict=True):
            share = work / step / DENSE_BF16
            yield case.name, f"{name}, %", f"{share * 100:.5g}", *_beside(share, getattr(summary, name), 100)


def _beside(true: float, ours: float | None, scale: float) -> Row:
    return ("—",) if ours is None else (f"{ours * scale:.5g}", f"{ours / true - 1:+.3%}")


def same(bench: Bench) -> Iterator[Row]:
    """Losses and weights of six steps, the second of which is counted, beside those of steps that nobody counts."""
    with _deterministic():
        off, again, counted = (_trained(bench, flops) for flops in ("off", "off", "count"))
    for name, other in (("off, again (the control)", again), ("count", counted)):
        *losses, weights = [bool(torch.equal(a, b)) for a, b in zip(off, other, strict=True)]
        either = "are" if weights else "are not"
        yield f'flops="off" and {name}', f"{sum(losses)} of 6 losses and the weights {either} bitwise equal"


def _trained(bench: Bench, flops: str) -> list[torch.Tensor]:
    case, losses = llama(bench, batch=2, length=512), []
    noted = SimpleNamespace(model=case.model, optimizer=case.optimizer, step=lambda one: losses.append(case.step(one)))
    train(bench, noted, [case.batch] * 6, bench.config(flops=flops))
    return [*losses, torch.cat([one.detach().flatten() for one in case.model.parameters()])]


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Otherwise the backward of fused attention adds in any order. The control finds what can't be deterministic."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        del os.environ["CUBLAS_WORKSPACE_CONFIG"]
