"""Batches of equal shapes that are unequal work: FLOPs are right or absent, and marked until a second count."""

import itertools
import random

import pytest
import torch
from counted import excluded, known
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from trainings import models, runs

from perf_callbacks import PerfConfig
from perf_callbacks.flops import fingerprint
from perf_callbacks.flops.count_schedule import RECOUNTS
from perf_callbacks.kernel.records.fit_records import Row
from perf_callbacks.loop import measure
from perf_callbacks.transformers import PerfCallback

WIDTH, LENGTH, STEPS = 8, 32, 60
ONCE = "perf/flops_counted_once"


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Whatever other tests have compiled in this process."""
    monkeypatch.setattr(fingerprint, "compiles", lambda: False)


class Attention(nn.Module):
    """Attention within each part of a row. The parts are those between two numbers of `cu_seqlens`."""

    reads = True

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cu_seqlens, labels=None):
        x = self.inner(x[0])
        ends = cu_seqlens.tolist() if self.reads else [0, LENGTH]
        outs = [part @ part.T @ part for part in (x[a:b] for a, b in itertools.pairwise(ends))]
        return {"loss": torch.cat(outs).square().mean()}


def attended(parts):
    """FLOPs of a step: two products with the weights, and three times the two products in each part."""
    return 2 * (2 * LENGTH * WIDTH**2) + 3 * sum(2 * 2 * part**2 * WIDTH for part in parts)


def packed_row(middle, number):
    values = torch.full((1,), number)
    return {"x": torch.ones(1, LENGTH, WIDTH), "cu_seqlens": torch.tensor([0, middle, LENGTH]), "labels": values}


def middles(count, among):
    """The middle of each batch. The counted and the recounted batch are equal, so the recount notices nothing."""
    chosen = random.Random(0).choices(among, k=count)
    chosen[RECOUNTS[0] - 1] = chosen[1]
    return chosen


def train(directory, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    config, rows = PerfConfig(output_dir=str(directory), gc="off", peak_tflops="1"), []
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            out = model(**batch) if isinstance(batch, dict) else model(batch)
            (out["loss"] if isinstance(out, dict) else out).backward()
            optimizer.step()
            optimizer.zero_grad()
            rows.append(perf.row())
    return perf.summary, rows


def wrong(found, truth):
    return [step for step, (flops, true) in enumerate(zip(found, truth, strict=True), 1) if flops not in {None, true}]


def test_parts_of_rows_that_differ_in_length_are_other_work(tmp_path):
    chosen = middles(STEPS, [16, 8, 2])
    summary, _ = train(tmp_path, Attention(), [packed_row(middle, step) for step, middle in enumerate(chosen)])
    found = known(tmp_path)
    assert wrong(found, [attended([middle, LENGTH - middle]) for middle in chosen]) == []
    assert found.count(None) < STEPS / 4
    assert summary.flops.checked_step >= RECOUNTS[0]


def test_parts_of_ever_new_lengths_are_unknown_except_counted_ones(tmp_path):
    chosen = [1 + step % 15 for step in range(STEPS)]
    train(tmp_path, Attention(), [packed_row(middle, step) for step, middle in enumerate(chosen)])
    assert wrong(known(tmp_path), [attended([middle, LENGTH - middle]) for middle in chosen]) == []


def test_lengths_that_no_model_reads_leave_flops_known(tmp_path):
    model = Attention()
    model.reads = False
    summary, _ = train(tmp_path, model, [packed_row(1 + step % 29, step) for step in range(STEPS)])
    found = known(tmp_path)
    assert wrong(found, [attended([LENGTH])] * STEPS) == []
    assert found[4:] == [attended([LENGTH])] * (STEPS - 4)
    assert summary.flops.unknown is None


class Padded(nn.Module):
    """Multiplies each padded sequence of a `PackedSequence` by itself."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, packed):
        padded, _ = pad_packed_sequence(packed._replace(data=self.inner(packed.data)), batch_first=True)
        return (padded @ padded.mT).square().mean()


def test_packed_sequences_of_other_lengths_are_other_work(tmp_path):
    forms = [(5, 3, 1), (3, 3, 3), (7, 1, 1)]
    chosen = middles(STEPS, forms)
    summary, _ = train(tmp_path, Padded(), [pack_sequence([torch.ones(n, WIDTH) for n in form]) for form in chosen])
    truth = [2 * (2 * 9 * WIDTH**2) + 3 * (2 * 3 * form[0] ** 2 * WIDTH) for form in chosen]
    found = known(tmp_path)
    assert wrong(found, truth) == []
    assert found.count(None) < STEPS / 4
    assert summary.included_samples == 3 * summary.included_steps


class Remembering(nn.Module):
    """Attends to all rows that it ever got."""

    def __init__(self):
        super().__init__()
        self.inner, self.past = nn.Linear(WIDTH, WIDTH), []

    def forward(self, x):
        x = self.inner(x)
        self.past.append(x.detach())
        return (x @ torch.cat(self.past).T).square().mean()


def test_keys_that_grow_are_marked_until_a_recount_notices(tmp_path):
    summary, rows = train(tmp_path, Remembering(), [torch.ones(4, WIDTH)] * 20)
    early = [row for row in rows[: RECOUNTS[0] - 1] if "perf/tflops" in row]
    assert early
    assert all(row[ONCE] == 1 for row in early)
    assert not any("perf/tflops" in row for row in rows[RECOUNTS[0] :])
    assert summary.flops.unknown.startswith("the work of equal batches varies")


def test_rows_of_flops_that_a_second_count_confirmed_have_no_mark(tmp_path):
    arguments = models.training_arguments(tmp_path, max_steps=14, per_device_train_batch_size=1)
    models.trainer(arguments, PerfCallback(PerfConfig(gc="off"))).train()
    marked = [row.step for row in runs.records(tmp_path, Row)[:-1] if ONCE in row.metrics]
    assert excluded(tmp_path) == [2, RECOUNTS[0]]
    assert marked == [*range(3, RECOUNTS[0])]


def test_batches_that_a_cycle_keeps_are_unseen_and_said_to_be(tmp_path):
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = [torch.ones(8, WIDTH)] * 3 + [torch.ones(4, WIDTH)]
    config = PerfConfig(output_dir=str(tmp_path), gc="off")
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for x in itertools.islice(itertools.cycle(perf.loader), STEPS):
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert perf.summary.included_samples is None
    assert perf.summary.flops.unknown.endswith("batches that a loop keeps, as with itertools.cycle, are not seen")
    products = [2 * 2 * rows * WIDTH**2 for rows in (8, 8, 8, 4)]
    assert wrong(known(tmp_path), (products * STEPS)[:STEPS]) == []
