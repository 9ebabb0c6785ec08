"""The CPUs of real processes: two ranks with one CPU each, and programs that chose their CPUs before."""

import json
import os
import subprocess
import sys

import pytest
from jobs import Job
from launching import program_environ
from topologies import Topology
from trainings.runs import records

from perf_callbacks.kernel.process.cpu_sets import ranges
from perf_callbacks.kernel.records.fit_records import Checklist

ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
HALF = ALL[: len(ALL) // 2]
RANKS = range(2)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(ALL) < len(RANKS), reason="there is one CPU, so there is nothing to choose"),
]


@pytest.mark.parametrize(
    ("door", "environ"),
    [
        ("transformers", {"LOCAL_WORLD_SIZE": "2"}),
        ("accelerate", {"LOCAL_WORLD_SIZE": "2"}),
        ("lightning", {}),  # its strategy tells how many processes are here
    ],
)
def test_ranks_and_their_workers_run_on_the_cores_they_are_given(tmp_path, door, environ):
    two_nodes = Topology(name="two", source="", nodes={0: f"{ALL[0]}", 1: f"{ALL[1]}"}, gpus=())
    root = two_nodes.lay(tmp_path / "machine")
    with Job(
        tmp_path / "job",
        door=door,
        plan={"steps": 8, "workers": 1, "root": str(root)},
        environ={rank: {"PERF_CALLBACKS_AFFINITY": "node", **environ} for rank in RANKS},
    ) as job:
        job.assert_ended(*RANKS)
        job.assert_unharmed(*RANKS)
        for rank in RANKS:
            facts, own = job.facts(rank), [[ALL[rank]]]
            assert facts["cpus"] == [[own, own]] * 8
            assert facts["cpus_after"] == [ALL]
            (row,) = [row for row in records(job.directory, Checklist, rank=rank) if row.item == "affinity"]
            assert (row.status, row.after) == ("applied", f"CPU {ALL[rank]}")
            assert row.why.startswith("2 NUMA nodes divided among 2 ranks")


PROGRAM = """
import json, os, sys, threading
import torch
from torch.utils.data import DataLoader, Dataset
from perf_callbacks import PerfConfig
from perf_callbacks.kernel.process import topology
from perf_callbacks.kernel.process.cpu_masks import AFFINITY
from perf_callbacks.kernel.process.cpu_sets import Machine, parse
from perf_callbacks.loop import measure

topology.machine = lambda root: Machine(nodes=dict(enumerate(map(parse, sys.argv[2:]))))

def masks():
    return [sorted(mask) for _, mask in AFFINITY.now]

class Masks(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return torch.tensor([float(cpu in os.sched_getaffinity(0)) for cpu in range(max(every) + 1)])

every, facts, go = sorted(os.sched_getaffinity(0)), {}, threading.Event()
def pinned():
    os.sched_setaffinity(0, {every[-1]})
    facts["pinned"] = threading.get_native_id()
    ready.set()
    go.wait()
ready = threading.Event()
torch.set_num_threads(2)
torch.ones(600, 600) @ torch.ones(600, 600)  # torch's own threads exist from here on
threading.Thread(target=pinned).start()
ready.wait()
model = torch.nn.Linear(max(every) + 1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Masks(), num_workers=1)
facts["before"] = masks()
config = PerfConfig(affinity="node", output_dir=sys.argv[1], flops="off")
try:
    with measure(model=model, optimizer=optimizer, loader=loader, config=config) as perf:
        for batch in perf.loader:
            facts["worker"] = [cpu for cpu, allowed in enumerate(batch[0].tolist()) if allowed]
            threading.Thread(target=go.wait).start()
            model(batch).sum().backward()
            optimizer.step()
            facts["inside"] = masks()
        raise OSError("the end")
except OSError:
    facts["after"] = masks()
    facts["pinned"] = sorted(os.sched_getaffinity(facts["pinned"]))
go.set()
print(json.dumps(facts))
"""


def run(tmp_path, *command):
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, str(tmp_path), *map(ranges, (HALF, ALL[len(HALF) :]))],
        env=program_environ(LOCAL_RANK="0", LOCAL_WORLD_SIZE="2"),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (row,) = [row for row in records(tmp_path, Checklist) if row.item == "affinity"]
    return json.loads(done.stdout.splitlines()[-1]), row


def test_every_thread_is_bound_and_restored_except_a_pinned_one(tmp_path):
    facts, row = run(tmp_path)
    assert (row.status, len(facts["before"]) >= 3) == ("applied", True)
    pinned = [ALL[-1]]
    assert sorted(facts["inside"]) == sorted([pinned, *[HALF] * (len(facts["inside"]) - 1)])
    assert len(facts["inside"]) > len(facts["before"])  # threads that were born within
    assert sorted(facts["after"]) == sorted([pinned, *[ALL] * (len(facts["after"]) - 1)])
    assert (facts["worker"], facts["pinned"]) == (HALF, pinned)


def test_what_taskset_chose_is_never_widened(tmp_path):
    facts, row = run(tmp_path, "taskset", "-c", str(ALL[0]))
    assert (row.status, row.before) == ("not applicable", f"CPU {ALL[0]} by the launcher")
    assert row.why == "the process may run on one of 2 NUMA nodes only"
    assert {tuple(mask) for moment in ("before", "inside", "after") for mask in facts[moment]} == {(ALL[0],)}
    assert facts["worker"] == [ALL[0]]
