"""A plain loop without a loader: it may say what it waits for and what it trains on, or nothing at all."""

import copy
import pickle

import pytest
import torch
from torch import nn

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure

STEPS, ROWS, WIDTH = 12, 16, 32
FLOPS = 3 * 2 * ROWS * WIDTH * 8 - 2 * ROWS * WIDTH * 8  # the input needs no gradient


def nothing(perf, x):
    return x


def waits(perf, x):
    with perf.data():
        return x.clone()


def batches(perf, x):
    perf.batch(x)
    return x


def amounts(perf, x):
    perf.batch(samples=ROWS, tokens=7)
    return x


def halves(perf, x):
    perf.batch(samples=ROWS // 2)
    perf.batch(samples=ROWS // 2)
    return x


def numbers_and_a_batch(perf, x):
    perf.batch(samples=2)
    perf.batch(x)
    return x


def fit(directory, fetch, **arguments):
    model = nn.Linear(WIDTH, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1")
    with measure(model=model, optimizer=optimizer, config=config, **arguments) as perf:
        for _ in range(STEPS):
            x = fetch(perf, torch.ones(ROWS, WIDTH))
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert all(torch.equal(one(x), model(x)) for one in copies)
    return perf.summary


@pytest.mark.parametrize(
    ("fetch", "samples", "tokens", "data"),
    [
        (nothing, None, None, False),
        (waits, None, None, True),
        (batches, STEPS * ROWS, None, False),
        (amounts, STEPS * ROWS, STEPS * 7, False),
        (halves, STEPS * ROWS, None, False),
        (numbers_and_a_batch, STEPS * (2 + ROWS), None, False),
    ],
)
def test_amounts_and_waits_are_those_that_the_loop_tells(tmp_path, fetch, samples, tokens, data):
    summary = fit(tmp_path, fetch)
    assert (summary.steps, summary.samples, summary.tokens) == (STEPS, samples, tokens)
    assert ("data_time" in summary.stage_seconds) is data
    assert summary.flops.model_flops == summary.flops.steps * FLOPS
    assert summary.flops.steps == summary.included_steps > 0


def test_a_loop_with_a_loader_has_told_its_batches(tmp_path):
    summary = fit(tmp_path, batches, loader=[torch.ones(ROWS, WIDTH)])
    assert summary.samples in {0, None}  # it did not iterate over perf.loader


def test_amounts_told_after_the_forward_belong_to_its_step(tmp_path):
    model = nn.Linear(WIDTH, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(tmp_path), gc="off", peak_tflops="1")
    with measure(model=model, optimizer=optimizer, config=config) as perf:
        for step in range(STEPS):
            for _ in range(2):
                loss = model(torch.ones(ROWS, WIDTH)).sum()
                perf.batch(samples=step)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert perf.summary.samples == sum(2 * step for step in range(STEPS))
    assert perf.summary.flops.steps == perf.summary.included_steps > 0


def loop(directory, each, steps=STEPS):
    """A loop that calls `each` with what it may need, and its summary."""
    model = nn.Linear(WIDTH, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(directory), gc="off", flops="off")
    with measure(model=model, optimizer=optimizer, config=config) as perf:
        for step in range(steps):
            each(step, perf, model, optimizer)
    return perf.summary


def train(model, optimizer):
    model(torch.ones(ROWS, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_step_that_raises_costs_itself_alone(tmp_path):
    def refuse(*_):
        raise RuntimeError("no")

    def each(step, perf, model, optimizer):
        if step != 4:
            train(model, optimizer)
            return
        handle = optimizer.register_step_pre_hook(refuse)
        with pytest.raises(RuntimeError):
            train(model, optimizer)
        handle.remove()

    assert loop(tmp_path, each).steps == STEPS - 1


def test_a_batch_ends_an_evaluation_and_a_wait_in_one_does_not(tmp_path):
    def each(step, perf, model, optimizer):
        perf.batch(samples=ROWS)
        train(model, optimizer)
        if step % 4 == 3:
            model.eval()
            for _ in range(3):
                with perf.data(), torch.no_grad():
                    x = torch.ones(ROWS, WIDTH)
                with torch.no_grad():
                    model(x)
            model.train()

    summary = loop(tmp_path, each)
    assert (summary.samples, summary.span_counts) == (STEPS * ROWS, {"evaluation": STEPS // 4})


def test_an_evaluation_takes_no_amounts(tmp_path):
    def each(step, perf, model, optimizer):
        perf.batch(samples=ROWS)
        with perf.evaluation():
            model(torch.ones(ROWS, WIDTH))
        train(model, optimizer)

    assert loop(tmp_path, each).samples == STEPS * ROWS


def test_amounts_beside_a_batch_win(tmp_path):
    def each(step, perf, model, optimizer):
        perf.batch(torch.ones(ROWS, WIDTH), samples=torch.tensor(2), tokens=7)
        train(model, optimizer)

    summary = loop(tmp_path, each)
    assert (summary.samples, summary.tokens) == (2 * STEPS, 7 * STEPS)


@pytest.mark.parametrize("wrong", ["7", -3, True, 1.5])
def test_an_amount_that_is_none_is_named_and_unknown(tmp_path, wrong, caplog, monkeypatch):
    monkeypatch.setattr("perf_callbacks.integrations.loop.loaderless._warned", set())

    def each(step, perf, model, optimizer):
        perf.batch(samples=wrong)
        train(model, optimizer)

    assert loop(tmp_path, each).samples is None
    (record,) = caplog.records
    assert f"perf.batch(samples={wrong!r}): wanted a whole number" in record.getMessage()
