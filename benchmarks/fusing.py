"""What does torch.compile save of the time that a profile shows for element-wise operations and casts?

    OMP_NUM_THREADS=1 python benchmarks/fusing.py                # all programs, some eight minutes
    OMP_NUM_THREADS=1 python benchmarks/fusing.py llama gelu     # two programs

Each program trains on a CPU, without and with `torch.compile(model)`, in turns. The table shows the part of the time
that the profile of the program without compilation shows, the part that compilation saves, and their ratio.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from perf_callbacks.advice.busy_time import fusible_seconds
from perf_callbacks.profiles.reduction import reduce_file

TURNS, STEPS = 5, 6
"""Number of turns of each form, and steps of a turn."""

Program = tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]


class Physics(nn.Module):
    """Small network with a long chain of operations on each element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 512), nn.Linear(512, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(4):
            x = x * torch.sigmoid(x) + torch.sin(x) * 0.1
        return self.last(x).square().mean()


def sequential(*layers: nn.Module, shape: tuple[int, ...]) -> Program:
    """Return a program whose loss is the mean square of its output."""
    x = torch.randn(*shape)
    return nn.Sequential(*layers), lambda model: model(x).square().mean()


def llama(width: int, length: int, batch: int, layers: int = 2) -> Program:
    """Return a program with a Llama."""
    config = LlamaConfig(
        hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=4, vocab_size=512
    )
    ids = torch.randint(512, (batch, length))
    return LlamaForCausalLM(config), lambda model: model(input_ids=ids, labels=ids).loss


def gpt2() -> Program:
    """Return a program with a GPT-2, which has dropout and writes GELU as separate operations."""
    config = GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=512, bos_token_id=0, eos_token_id=0)
    ids = torch.randint(512, (8, 128))
    return GPT2LMHeadModel(config), lambda model: model(input_ids=ids, labels=ids).loss


def physics() -> Program:
    """Return a program with a long chain of operations."""
    x = torch.randn(1024, 64)
    return Physics(), lambda model: model(x)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "llama": lambda: llama(128, 256, 4),
    "bf16 llama": lambda: llama(128, 256, 4),
    "gpt2": gpt2,
    "gelu": lambda: sequential(
        *[nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.Dropout(0.1)] * 2, shape=(256, 256)
    ),
    "convolutions": lambda: sequential(
        *[nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.SiLU(), nn.Conv2d(32, 32, 3), nn.BatchNorm2d(32), nn.SiLU()],
        shape=(8, 3, 48, 48),
    ),
    "physics": physics,
}


def run(name: str) -> tuple[float, float, float]:
    """Return the part of the time that could be fused, and milliseconds per step without and with compilation."""
    torch.manual_seed(0)
    model, loss_of = PROGRAMS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def format_of() -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16) if name.startswith("bf16") else nullcontext()

    def train(of: nn.Module, steps: int, ended: Callable[[], object] = lambda: None) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            with format_of():
                loss = loss_of(of)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ended()
        return (time.perf_counter() - began) / steps * 1000

    train(model, 3)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=2, active=3, repeat=1), record_shapes=True
    ) as profiler:
        train(model, 5, profiler.step)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        found = reduce_file(trace)
    compiled = torch.compile(model)
    train(compiled, 3)
    times = [(train(model, STEPS), train(compiled, STEPS)) for _ in range(TURNS)]
    before, after = [median(column) for column in zip(*times, strict=True)]
    return fusible_seconds(found) / found.span_seconds, before, after


def main() -> None:
    """Run the programs that the command line names, or all programs."""
    torch.set_num_threads(1)
    print("| program | element-wise and casts | without | with torch.compile | saved | saved / shown |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in sys.argv[1:] or PROGRAMS:
        part, before, after = run(name)
        saved = 1 - after / before
        times = f"{before:.1f} ms | {after:.1f} ms"
        print(f"| {name} | {part:.0%} | {times} | {saved:.0%} | {saved / part:.2f} |", flush=True)


if __name__ == "__main__":
    main()
