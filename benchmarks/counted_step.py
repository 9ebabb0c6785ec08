"""CPU time of the step whose FLOPs are counted, beside a usual step of the same run, in programs that differ.

    python benchmarks/counted_step.py [--programs rows clipping ...] [--repeats 5]

Each program trains in a process of its own, with one thread, once with `flops="count"` and once with `flops="off"`. The
first column is the median over repeats of: CPU seconds of step 2, over the median of steps 5 to 10 of the same run. The
second column is the same without counting, a control. A count may take four usual steps.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

STEPS = 10
USUAL = slice(4, None)


class RowWise(torch.optim.Optimizer):
    """Updates each row of each weight by operations of its own."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002 torch's signature
        for parameter in self.param_groups[0]["params"]:
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            for row in range(parameter.size(0)):
                momentum[row].mul_(0.9).add_(parameter.grad[row], alpha=0.1)
                parameter[row] -= 1e-3 * momentum[row]


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm, self.heads, self.hidden = nn.LayerNorm(hidden), max(1, hidden // 64), hidden
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Cells(nn.Module):
    """Recurrent network whose time steps are a loop in Python."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.cell, self.hidden = nn.GRUCell(hidden, hidden), hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x), self.hidden)
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        return state


def transformer(hidden: int, layers: int) -> nn.Module:
    return nn.Sequential(*[Block(hidden) for _ in range(layers)])


def wide(features: int = 300) -> nn.Module:
    return nn.Sequential(nn.Linear(64, features), nn.ReLU(), nn.Linear(features, features))


Program = tuple[nn.Module, torch.Tensor, torch.optim.Optimizer, Callable[[nn.Module, torch.Tensor], object]]


def rows() -> Program:
    model = wide(1000)
    return model, torch.randn(32, 64), RowWise(model.parameters()), _nothing


def clipping() -> Program:
    def clip(model: nn.Module, _: torch.Tensor) -> None:
        for parameter in model.parameters():
            for row in parameter.grad:
                row.mul_((1.0 / (row.norm() + 1e-6)).clamp(max=1.0))

    return _program(wide(1000), torch.randn(32, 64), clip)


def metrics() -> Program:
    def accuracy(_: nn.Module, output: torch.Tensor) -> None:
        for row in output:
            row.max().item()
            (row > 0).sum().item()

    return _program(wide(), torch.randn(512, 64), accuracy)


def tiny() -> Program:
    return _program(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(8, 16))


def narrow() -> Program:
    return _program(transformer(64, 12), torch.randn(2, 32, 64))


def usual() -> Program:
    return _program(transformer(512, 4), torch.randn(2, 128, 512))


def large() -> Program:
    return _program(transformer(1024, 2), torch.randn(2, 128, 1024))


def recurrent() -> Program:
    return _program(Cells(), torch.randn(16, 200, 32))


def many_parameters() -> Program:
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(100)])
    return model, torch.randn(64, 16), torch.optim.AdamW(model.parameters(), foreach=False), _nothing


def convolutions() -> Program:
    layers = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(10)]
    return _program(nn.Sequential(*layers), torch.randn(8, 16, 16, 16))


def compiled() -> Program:
    return _program(torch.compile(transformer(128, 2)), torch.randn(2, 64, 128))


def compiled_graphs() -> Program:
    return _program(torch.compile(transformer(64, 4), backend="aot_eager"), torch.randn(2, 32, 64))


def _program(
    model: nn.Module, batch: torch.Tensor, between: Callable[[nn.Module, torch.Tensor], object] | None = None
) -> Program:
    return model, batch, torch.optim.AdamW(model.parameters()), between or _nothing


def _nothing(_model: nn.Module, _output: torch.Tensor) -> None:
    pass


PROGRAMS = (
    rows, clipping, metrics, tiny, narrow, usual, large, recurrent, many_parameters, convolutions, compiled,
    compiled_graphs,
)  # fmt: skip


def train(program: Callable[[], Program], flops: str) -> list[float]:
    """Return the CPU seconds of each step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batch, optimizer, between = program()
    seconds = []
    with measure(model=model, optimizer=optimizer, config=PerfConfig(flops=flops, journal=False, measure_peak="off")):
        for _ in range(STEPS):
            began = time.process_time()
            output = model(batch)
            output.square().mean().backward()
            between(model, output)
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.process_time() - began)
    return seconds


def ratio(seconds: list[float]) -> float:
    return seconds[1] / statistics.median(seconds[USUAL])


def _in_process(program: str, flops: str) -> list[float]:
    command = [sys.executable, __file__, "--train", program, flops]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(second) for second in done.stdout.splitlines()[-1].split()]


def main() -> None:
    names = [program.__name__ for program in PROGRAMS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", default=names, choices=names)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train", nargs=2, metavar=("PROGRAM", "FLOPS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    by_name = dict(zip(names, PROGRAMS, strict=True))
    if arguments.train:
        print(*train(by_name[arguments.train[0]], arguments.train[1]))
        return
    print(
        "| program | counted step / usual step | the same, not counted | usual step, ms of CPU |\n|---|---:|---:|---:|"
    )
    for name in arguments.programs:
        runs = {how: [_in_process(name, how) for _ in range(arguments.repeats)] for how in ("count", "off")}
        counted, control = (statistics.median(map(ratio, runs[how])) for how in ("count", "off"))
        step = statistics.median(statistics.median(run[USUAL]) for run in runs["off"])
        print(f"| {name} | {counted:.2f} | {control:.2f} | {step * 1e3:.1f} |", flush=True)


if __name__ == "__main__":
    main()
