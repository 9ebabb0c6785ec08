"""The CPUs of this process through every door: narrowed while a fit lasts, and as they were found afterwards."""

import os

import pytest
import torch
from faults import ERRORS
from sampling import sampled
from torch.utils.data import DataLoader, Dataset
from trainings.doors import DOORS
from trainings.runs import records

from perf_callbacks import PerfConfig
from perf_callbacks.kernel.process import topology
from perf_callbacks.kernel.process.cpu_masks import AFFINITY
from perf_callbacks.kernel.process.cpu_sets import Machine, ranges
from perf_callbacks.kernel.records.fit_records import Checklist
from perf_callbacks.loop import measure

ALL = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
NODES = [frozenset(sorted(ALL)[: len(ALL) // 2]), frozenset(sorted(ALL)[len(ALL) // 2 :])]
OWN = NODES[1]

pytestmark = [
    pytest.mark.usefixtures("accelerate_state", "two_nodes"),
    pytest.mark.skipif(len(ALL) < 2, reason="there is one CPU, so there is nothing to choose"),
]
STEPS = 8
every_door = pytest.mark.parametrize("through", DOORS.values(), ids=DOORS)


@pytest.fixture
def two_nodes(monkeypatch):
    """The machine has two nodes. This is the second of two ranks, as an MPI says it; nobody takes that for a job."""
    monkeypatch.setattr(topology, "machine", lambda _: Machine(nodes=dict(enumerate(NODES))))
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")


def masks():
    return {mask for _, mask in AFFINITY.now}


@every_door
def test_a_rank_runs_on_its_node_while_a_fit_lasts(tmp_path, through):
    seen = []
    summary = through(tmp_path, after_step=lambda _: seen.append(masks()), affinity="node").run().summary
    assert seen == [{OWN}] * STEPS
    assert masks() == {ALL}
    (row,) = [row for row in records(tmp_path, Checklist) if row.item == "affinity"]
    assert (row.status, row.after.split()[1]) == ("applied", ranges(OWN))
    assert row.why.startswith("2 NUMA nodes divided among 2 ranks")
    assert summary.failure is None


@pytest.mark.parametrize(("through", "error"), sampled(DOORS, ERRORS))
def test_however_it_ends_the_masks_are_back(tmp_path, through, error):
    def after_step(step):
        if step == 3:
            assert masks() == {OWN}
            raise error

    with pytest.raises((type(error), SystemExit)):  # Lightning exits after an interrupt
        through(tmp_path, after_step=after_step, affinity="node").run()
    assert masks() == {ALL}


@pytest.mark.parametrize(("through", "other"), sampled(DOORS, {name: DOORS[name] for name in ("transformers", "loop")}))
def test_a_fit_within_a_fit_leaves_the_outer_one_what_it_had(tmp_path, through, other):
    seen = []

    def after_step(step):
        seen.append(masks())
        if step == 4:
            other(tmp_path / "inner", after_step=lambda _: seen.append(masks()), affinity="node").run()

    through(tmp_path, after_step=after_step, affinity="node").run()
    assert seen == [{OWN}] * 2 * STEPS
    assert masks() == {ALL}


SWITCH_INTERVAL = [{"checklist": "off"}, {"skip": "affinity"}, {"affinity": "off"}, {"enabled": False}]


@pytest.mark.parametrize(("through", "config"), sampled(DOORS, SWITCH_INTERVAL))
def test_each_switch_leaves_the_masks_alone(tmp_path, through, config):
    seen = []
    through(tmp_path, after_step=lambda _: seen.append(masks()), **{"affinity": "node", **config}).run()
    assert seen in ([{ALL}] * STEPS, [])


class Masks(Dataset):
    """Number of CPUs where the item is made."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor([float(cpu in os.sched_getaffinity(0)) for cpu in sorted(ALL)])


def test_loader_workers_run_on_these_cores_too_and_fits_may_overlap(tmp_path):
    model = torch.nn.Linear(len(ALL), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = PerfConfig(output_dir=str(tmp_path), affinity="node")

    def fit():
        return measure(
            model=model, optimizer=optimizer, loader=DataLoader(Masks(), batch_size=4, num_workers=1), config=config
        )

    one, other = fit(), fit()
    one.__enter__()
    other.__enter__()
    for batch in other.loader:
        assert batch.tolist() == [[float(cpu in OWN) for cpu in sorted(ALL)]] * 4
    one.__exit__(None, None, None)
    assert masks() == {OWN}
    other.__exit__(None, None, None)
    assert masks() == {ALL}
