"""A plain loop without a loader: it may say what it waits for and what it trains on, or nothing at all."""

import copy
import pickle

import pytest
import torch
from rows import each_row
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

STEPS, ROWS, WIDTH = 12, 16, 32
X = torch.ones(ROWS, WIDTH)
FLOPS = 3 * 2 * ROWS * WIDTH * 8 - 2 * ROWS * WIDTH * 8  # the input needs no gradient


def nothing(perf, x):
    pass


def waits(perf, x):
    with perf.data():
        x.clone()


def batches(perf, x):
    perf.batch(x)


def amounts(perf, x):
    perf.batch(samples=ROWS, tokens=7)


def halves(perf, x):
    perf.batch(samples=ROWS // 2)
    perf.batch(samples=ROWS // 2)


def numbers_and_a_batch(perf, x):
    perf.batch(samples=2)
    perf.batch(x)


def amounts_beside_a_batch(perf, x):
    perf.batch(x, samples=torch.tensor(2), tokens=7)


def an_evaluation_between(perf, x):
    perf.batch(x)
    with perf.evaluation():
        torch.ones(2) + 1


class Loop:
    """A loop without a loader, and what it may need in each step."""

    def __init__(self, directory, each, *, flops="count", **arguments):
        self.model = nn.Linear(WIDTH, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        config = PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1", flops=flops)
        with measure(model=self.model, optimizer=self.optimizer, config=config, **arguments) as self.perf:
            for step in range(STEPS):
                each(self, step)
            copies = copy.deepcopy(self.model), pickle.loads(pickle.dumps(self.model))
        assert all(torch.equal(copied(X), self.model(X)) for copied in copies)
        self.summary = self.perf.summary

    def train(self):
        self.model(X).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def fetching(fetch):
    def each(loop, step):
        fetch(loop.perf, X)
        loop.train()

    return each


@each_row(
    ("fetch", "samples", "tokens", "data"),
    [
        (nothing, None, None, False),
        (waits, None, None, True),
        (batches, STEPS * ROWS, None, False),
        (amounts, STEPS * ROWS, STEPS * 7, False),
        (halves, STEPS * ROWS, None, False),
        (numbers_and_a_batch, STEPS * (2 + ROWS), None, False),
        (amounts_beside_a_batch, STEPS * 2, STEPS * 7, False),
    ],
)
def test_amounts_and_waits_are_as_the_loop_tells(tmp_path, fetch, samples, tokens, data):
    summary = Loop(tmp_path, fetching(fetch)).summary
    assert (summary.steps, summary.samples, summary.tokens) == (STEPS, samples, tokens)
    assert ("data_time" in summary.stage_seconds) is data
    assert summary.flops.model_flops == summary.flops.steps * FLOPS
    assert summary.flops.steps == summary.included_steps > 0


def test_a_loop_with_a_loader_has_told_its_batches(tmp_path):
    summary = Loop(tmp_path, fetching(batches), loader=[X]).summary
    assert summary.samples in {0, None}  # it did not iterate over perf.loader


def test_an_evaluation_takes_no_amounts(tmp_path):
    assert Loop(tmp_path, fetching(an_evaluation_between)).summary.samples == STEPS * ROWS


def test_amounts_told_after_the_forward_belong_to_its_step(tmp_path):
    def each(loop, step):
        for _ in range(2):
            loss = loop.model(X).sum()
            loop.perf.batch(samples=step)
            loss.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()

    summary = Loop(tmp_path, each).summary
    assert summary.samples == sum(2 * step for step in range(STEPS))
    assert summary.flops.steps == summary.included_steps > 0


def test_a_step_that_raises_costs_itself_alone(tmp_path):
    def refuse(*_):
        raise RuntimeError("no")

    def each(loop, step):
        if step != 4:
            loop.train()
            return
        handle = loop.optimizer.register_step_pre_hook(refuse)
        with pytest.raises(RuntimeError):
            loop.train()
        handle.remove()

    assert Loop(tmp_path, each, flops="off").summary.steps == STEPS - 1


def test_a_batch_ends_an_evaluation_and_a_wait_in_it_does_not(tmp_path):
    def each(loop, step):
        loop.perf.batch(samples=ROWS)
        loop.train()
        if step % 4 == 3:
            loop.model.eval()
            for _ in range(3):
                with loop.perf.data(), torch.no_grad():
                    x = torch.ones(ROWS, WIDTH)
                with torch.no_grad():
                    loop.model(x)
            loop.model.train()

    summary = Loop(tmp_path, each, flops="off").summary
    assert (summary.samples, summary.span_counts) == (STEPS * ROWS, {"evaluation": STEPS // 4})


@pytest.mark.parametrize("wrong", ["7", -3, True, 1.5])
def test_an_amount_that_is_no_number_is_named_and_unknown(tmp_path, wrong, caplog, monkeypatch):
    monkeypatch.setattr("perf_callbacks.integrations.loop.loaderless.warned", set())
    assert Loop(tmp_path, fetching(lambda perf, _: perf.batch(samples=wrong))).summary.samples is None
    (record,) = caplog.records
    assert f"perf.batch(samples={wrong!r}): wanted a whole number" in record.getMessage()
