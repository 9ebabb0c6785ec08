"""Shares of modules sum to the whole, and are those of a calculation by hand, for random models."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from perf_callbacks.flops.counting.counter import FlopCounter

ROWS, WIDTH = 3, 4
ONE = 2 * ROWS * WIDTH * WIDTH

layers = st.integers(0, 3)
parts = st.recursive(
    st.tuples(st.just("call"), layers),
    lambda inner: st.tuples(
        st.sampled_from(["list", "reentrant", "early", "no_grad", "raises"]), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


class Program(nn.Module):
    """Calls layers of a shared pool in a random order, some of them checkpointed, without gradients, or in vain."""

    def __init__(self, pool, kind, body):
        super().__init__()
        self.pool, self.kind = pool, kind
        self.number = body if kind == "call" else None
        self.body = nn.ModuleList() if kind == "call" else nn.ModuleList(Program(pool, *one) for one in body)

    def forward(self, x):
        if self.kind == "call":
            return self.pool[self.number](x)
        if self.kind == "raises":
            try:
                self.run(x).reshape(-1, 5)  # of 12 numbers
            except RuntimeError:
                return x
        if self.kind == "no_grad":
            with torch.no_grad():
                self.run(x)
            return x
        if self.kind in {"reentrant", "early"}:
            return checkpoint(self.run, x, use_reentrant=self.kind == "reentrant")
        return self.run(x)

    def run(self, x):
        for one in self.body:
            x = one(x)
        return x

    def calls(self, kind, body, *, graph=True):
        """Calls by layer: all, and those that the backward goes through."""
        if kind == "call":
            return Counter({body: 1}), Counter({body: int(graph)})
        every, used = Counter(), Counter()
        for one in body:
            a, b = self.calls(*one, graph=graph and kind not in {"no_grad", "raises"})
            every += a
            used += b
        return every, used


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # nested checkpoints
@settings(max_examples=60)
@given(parts, st.integers(1, 2))
def test_shares_sum_to_the_whole_as_by_hand(part, batches):
    pool = nn.ModuleDict({f"layer_{number}": nn.Linear(WIDTH, WIDTH) for number in range(4)})
    program = Program([*pool.values()], *part)
    model = nn.ModuleDict({"pool": pool, "program": program})
    with FlopCounter(model=model) as counter:
        for _ in range(batches):
            x = torch.ones(ROWS, WIDTH, requires_grad=True)
            model["program"](x).sum().backward()
    assert not counter.errors
    total = counter.work()
    lines = {line.path: line for line in counter.modules.lines(total)}
    assert counter.modules.failure is None
    assert sum(line.model_flops for line in lines.values()) == total.model_flops
    assert sum(line.hardware_flops for line in lines.values()) == total.hardware_flops
    every, used = program.calls(*part)
    for number in range(4):
        line = lines[f"pool.layer_{number}"]
        assert line.forward_flops == batches * every[number] * ONE
        assert line.backward_flops == batches * used[number] * 2 * ONE
    assert {path for path, line in lines.items() if line.hardware_flops} <= {f"pool.layer_{n}" for n in range(4)}
