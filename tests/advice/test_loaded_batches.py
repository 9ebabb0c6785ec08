"""Sizes of batches, and waits for them that come in bursts."""

import numpy as np
import pytest
import torch

from perf_callbacks.advice.loaded_batches import FEWEST_GROUPS, LoadedBatches
from perf_callbacks.kernel.records.fit_records import Steps
from perf_callbacks.loop import measure


def facts(*waits, workers=2, excluded=()):
    """The facts after steps that wait this long, and then compute for a second."""
    batches = LoadedBatches(workers)
    for start in range(0, len(waits), 7):  # groups don't end where records end
        part = waits[start : start + 7]
        batches.record_written(
            Steps(
                step=tuple(range(start, start + len(part))),
                step_time=tuple([1.0 + wait for wait in part]),
                data_time=part,
                excluded=tuple(excluded[start : start + 7]),
            )
        )
    return batches.facts()


def test_a_group_has_a_step_per_worker():
    in_turns = (1.0, 0.0) * 20
    assert facts(*in_turns)["calm_share"] == 0.0, "two slow workers that began together"
    assert facts(*in_turns, workers=1)["calm_share"] == 0.5


def test_rare_waits_are_bursts():
    found = facts(*(0.01,) * 18, 3.0, 1.0, *(0.01,) * 20)
    assert found == {"batch_bytes": None, "batch_lengths": 0, "calm_share": 0.95, "burst_seconds": 4.0}


@pytest.mark.parametrize("waits", [(0.01,) * 40, (3.0,) * (2 * FEWEST_GROUPS - 1), ()])
def test_without_waits_or_with_few_steps_bursts_are_unknown(waits):
    assert facts(*waits) == {"batch_bytes": None, "batch_lengths": 0}


def test_excluded_steps_do_not_count():
    waits = (9.0, 0.01, 0.01, 0.01, 0.01) * 10
    reasons = ["evaluation", None, None, None, None] * 10
    assert "calm_share" not in facts(*waits, excluded=reasons)


def test_the_largest_batch_is_measured():
    batches = LoadedBatches(0)
    for rows in (2, 8, 4):
        batches.shape_seen((), {"ids": torch.ones(rows, 3, dtype=torch.int64), "mask": np.ones(rows, dtype=np.int8)})
    assert batches.facts() == {"batch_bytes": 8 * 25, "batch_lengths": 1}
    batches.shape_seen((), {"graph": object()})
    assert batches.facts() == {"batch_bytes": 8 * 25, "batch_lengths": 1}
    batches.shape_seen((), {"ids": torch.ones(2, 5, dtype=torch.int64), "labels": torch.ones(2)})
    assert batches.facts()["batch_lengths"] == 2


def test_a_fit_knows_the_size_of_its_batches(monkeypatch):
    found, facts = [], LoadedBatches.facts
    monkeypatch.setattr(LoadedBatches, "facts", lambda batches: found.append(facts(batches)) or found[-1])
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with measure(model=model, optimizer=optimizer, loader=[torch.ones(8, 4)] * 5) as perf:
        for batch in perf.loader:
            model(batch).sum().backward()
            optimizer.step()
    assert found[-1]["batch_bytes"] == 8 * 4 * 4
