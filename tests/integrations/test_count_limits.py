"""A count costs little, whatever the program does in the counted step: it ends, or leaves what has no products."""

import re
import sys
from dataclasses import replace

import pytest
import torch
from counted import counts, fit, known, left_behind, loop, truth
from rows import each_row
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes

from perf_callbacks.flops import observer
from perf_callbacks.flops.counted_step import REST
from perf_callbacks.flops.counting import count_limit
from perf_callbacks.report.cards import closing

STEPS = 4


class RowWise(torch.optim.Optimizer):
    """Updates each row by itself, and notes in which rows the counter is there."""

    def __init__(self, parameters, *, product=False):
        super().__init__(parameters, {})
        self.watched, self.product = [], product

    @torch.no_grad()
    def step(self, closure=None):
        watched = 0
        for parameter in self.param_groups[0]["params"]:
            for row in range(len(parameter)):
                watched += len(modes())
                parameter[row].sub_(parameter.grad[row].mul(0.01))
        if self.product:
            torch.ones(2, 2) @ torch.ones(2, 2)
        self.watched.append(watched)


def network(rows=300):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, rows), nn.ReLU(), nn.Linear(rows, 4))


def batches(number=STEPS):
    return [torch.full((3, 4), 1 / (1 + step)) for step in range(number)]


@pytest.mark.parametrize("product", [False, True])
def test_the_counter_leaves_an_optimizer_that_works_row_by_row(tmp_path, monkeypatch, product):
    monkeypatch.setattr(count_limit, "MOST_WITHOUT_PRODUCT", 100)
    before, model = left_behind(), network()
    optimizer = RowWise(model.parameters(), product=product)
    summary = fit(tmp_path, model, batches(), optimizer=optimizer).summary
    assert left_behind() == before
    rows = sum(len(parameter) for parameter in model.parameters())
    assert [0 < watched < rows / 4 for watched in optimizer.watched] == [False, True, False, False]
    (record,) = counts(tmp_path)
    assert (record.model_flops, record.lower_bound) == (truth(network(), batches()[1]), False)
    assert any("outside of forward and backward" in name for name in record.uncounted)
    assert summary.failure is None


def test_a_counter_that_left_a_clipping_returns_for_the_next_forward(tmp_path, monkeypatch):
    monkeypatch.setattr(count_limit, "MOST_WITHOUT_PRODUCT", 50)
    model = network()

    def step(_, batch):
        model(batch).square().mean().backward()
        for parameter in model.parameters():
            for row in parameter.grad:
                row.mul_(1.0)

    stacks = []
    fit(tmp_path, model, batches(2 * STEPS), step, each=2, after=lambda: stacks.append(modes()))
    assert stacks[3::2] == [[]] * (STEPS - 1)  # after the first step, a count begins
    assert known(tmp_path)[1:] == [2 * truth(network(), batches()[0])] * (STEPS - 1)
    (record,) = counts(tmp_path)
    assert not record.lower_bound


def test_a_profiler_of_the_program_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(count_limit, "MOST_WITHOUT_PRODUCT", 50)
    model = network(60)

    def theirs(*_):
        pass

    sys.setprofile(theirs)
    try:
        fit(tmp_path, model, batches(), optimizer=RowWise(model.parameters()))
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert known(tmp_path)[1:] == [truth(network(60), batches()[0])] * (STEPS - 1)


@pytest.mark.parametrize(("most", "complete"), [(250, True), (20, False)])
def test_a_count_that_ends_early_keeps_complete_micro_batches(tmp_path, monkeypatch, most, complete):
    monkeypatch.setattr(observer, "MOST_OPERATIONS", most)
    monkeypatch.setattr(count_limit, "CHECK_EVERY", 1)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)])
    before = left_behind()
    loop(tmp_path, model, batches(16), each=4)
    assert left_behind() == before
    record = counts(tmp_path)[0]
    each = truth(model, batches()[0])
    if complete:
        assert known(tmp_path)[1:] == [4 * each] * 3
        assert (record.whole_step, record.lower_bound, record.model_flops % each) == (False, False, 0)
        assert each <= record.model_flops < 4 * each
    else:
        assert (record.lower_bound, record.uncounted) == (True, {REST: 1})
        assert record.model_flops < each
        assert all(flops is None or flops <= 4 * each for flops in known(tmp_path))


def test_a_clock_ends_the_counts_of_single_processes_only(tmp_path, monkeypatch):
    monkeypatch.setattr(observer, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(observer, "MOST_STEPS", 0)
    monkeypatch.setattr(count_limit, "CHECK_EVERY", 1)
    loop(tmp_path / "alone", network(), batches())
    monkeypatch.setattr(observer, "alone", lambda _run: False)
    loop(tmp_path / "ranks", network(), batches())
    alone, ranks = (counts(tmp_path / name) for name in ("alone", "ranks"))
    assert [record.lower_bound for record in (*alone, *ranks)] == [*[True] * len(alone), False]


def many(tensor):
    for _ in range(300):
        tensor = torch.add(tensor, 1.0)
    return tensor


def inferred(tensor):
    with torch.inference_mode():
        return many(tensor)


LENDING = {
    "inference mode": inferred,
    "forward mode": lambda tensor: torch.func.jvp(many, (tensor,), (tensor,)),
    "vmap": torch.func.vmap(many),
    "gradients": torch.func.grad(lambda tensor: many(tensor).sum()),
    "autocast": torch.autocast("cpu", torch.bfloat16)(many),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of torch's forward mode
@each_row("name", LENDING)
def test_the_counter_leaves_no_thread_whose_keys_torch_has_lent(tmp_path, monkeypatch, name):
    monkeypatch.setattr(count_limit, "MOST_WITHOUT_PRODUCT", 100)
    before = left_behind()

    def lend():
        LENDING[name](batches()[0])
        assert torch.randn(3).shape == (3,)  # fails if a mode is missing that torch's keys name

    fit(tmp_path / name, network(4), batches(), after=lend)
    assert left_behind() == before
    assert known(tmp_path / name)[1:] == [truth(network(4), batches()[0])] * (STEPS - 1)


class Multiplying(torch.optim.SGD):
    """Issues many small products after its update."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for _ in range(300):
            torch.mul(torch.ones(2, 2) @ torch.ones(2, 2), 1.0)


def test_an_update_that_was_not_counted_to_its_end_marks_hfu(tmp_path, monkeypatch):
    monkeypatch.setattr(observer, "MOST_OPERATIONS", 300)
    monkeypatch.setattr(count_limit, "CHECK_EVERY", 1)
    model = network(8)
    optimizer = Multiplying(model.parameters(), lr=0.01)
    summary = fit(tmp_path, model, batches(), optimizer=optimizer).summary
    record = counts(tmp_path)[0]
    assert (record.model_flops, record.lower_bound) == (truth(network(8), batches()[0]), False)
    assert record.uncounted == {REST: 1}
    assert 0 < record.by_phase["optimizer"] < 300 * 16
    peaked = replace(summary.flops, peak_flops_per_second=1e9, dtype="float32")
    text = " ".join(closing(replace(summary, flops=peaked)).split())
    assert re.search(r"MFU [\d.]+%, HFU ≥ [\d.]+% of", text)
    assert REST in text
