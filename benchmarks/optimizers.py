"""What does `fused=True` save of an optimizer's update on a CPU? By optimizer, number and size of its tensors.

    OMP_NUM_THREADS=1 python benchmarks/optimizers.py

The default and the fused optimizer take turns, each on tensors and gradients of its own. The table has the share of the
default's time that fused saves, from the medians of all turns.
"""

import statistics
import time

import torch

OPTIMIZERS = {
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "SGD without momentum": (torch.optim.SGD, {}),
}
COUNTS = (10, 100, 400)
ELEMENTS = (64, 4096, 65_536, 262_144)
MOST_ELEMENTS = 30_000_000
TURNS, WARM = 15, 3


def update(kind, options, count, elements, *, fused):
    """Return an update of that many tensors."""
    tensors = [torch.nn.Parameter(torch.randn(elements)) for _ in range(count)]
    for tensor in tensors:
        tensor.grad = torch.randn(elements)
    return kind(tensors, lr=1e-3, fused=fused or None, **options).step


def saved(name, count, elements):
    """Measure both in turns. Return the share that fused saves, and the milliseconds of the default."""
    kind, options = OPTIMIZERS[name]
    updates = [update(kind, options, count, elements, fused=fused) for fused in (False, True)]
    times = [[], []]
    for turn in range(TURNS):
        for step, found in zip(updates, times, strict=True):
            begin = time.perf_counter()
            step()
            if turn >= WARM:
                found.append(time.perf_counter() - begin)
    default, fused = map(statistics.median, times)
    return 1 - fused / default, 1000 * default


def main():
    torch.manual_seed(0)
    print("| optimizer | tensors | elements of each | saved by fused | default, ms |\n" + 5 * "|---" + "|")
    for name in OPTIMIZERS:
        for count in COUNTS:
            for elements in ELEMENTS:
                if count * elements <= MOST_ELEMENTS:
                    share, milliseconds = saved(name, count, elements)
                    print(f"| {name} | {count} | {elements:,} | {share:.0%} | {milliseconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
