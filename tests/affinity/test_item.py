"""The item `affinity`: what it decides, and what it does to the masks of threads."""

import dataclasses
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from rows import each_row

import perf_callbacks
from perf_callbacks import PerfConfig
from perf_callbacks.affinity import item as affinity_item
from perf_callbacks.affinity.item import ITEM
from perf_callbacks.kernel.fit import environment
from perf_callbacks.kernel.fit.item import Fit
from perf_callbacks.kernel.process.cpu_masks import Affinity
from perf_callbacks.kernel.process.cpu_sets import CpuFacts, Gpu, Machine, parse

GPU = Gpu(pci="0000:1b:00.0", node=1)
FACTS = CpuFacts(mask=parse("0-7"), machine=Machine(nodes={0: parse("0-3"), 1: parse("4-7")}), gpu=GPU)
ON_NODE_1 = "GPU 0000:1b:00.0 is on NUMA node 1"


def decided(affinity="auto", **changes):
    found = dataclasses.replace(environment.read(), cpu_facts=dataclasses.replace(FACTS, **changes))
    row = ITEM.decide(found, PerfConfig(affinity=affinity))
    return row.status, row.before, row.after, row.why


@each_row(
    ("affinity", "changes", "row"),
    [
        ("auto", {}, ("applied", "CPUs 0-7", "CPUs 4-7", ON_NODE_1)),
        ("off", {}, ("skipped", "CPUs 0-7", None, "affinity=off")),
        ("node", {"mask": parse("4,6")}, ("already so", "CPUs 4,6", None, ON_NODE_1)),
        (
            "auto",
            {"workers": 3},
            (
                *("advised", "CPUs 0-7", "affinity=node"),
                f"{ON_NODE_1}; 4 CPUs for 3 workers and the training",
            ),
        ),
        ("auto", {"workers": 2}, ("applied", "CPUs 0-7", "CPUs 4-7", ON_NODE_1)),
        (
            "node",
            {"mask": parse("0-4")},
            (
                *("applied", "CPUs 0-4", "CPU 4"),
                f"{ON_NODE_1}; 1 CPU for the training",
            ),
        ),
        (
            "auto",
            {"mask": parse("0-3"), "bound": True},
            (
                *("advised", "CPUs 0-3 by the launcher", "start the rank there"),
                f"{ON_NODE_1}, whose CPUs are 4-7",
            ),
        ),
        (
            "auto",
            {"machine": Machine(nodes={0: parse("0-7")}, quota=2.5)},
            ("not applicable", "CPUs 0-7, 2.5 CPUs' worth of time", None, "all CPUs are on one NUMA node"),
        ),
    ],
)
def test_a_row_says_the_state_before_the_change_and_the_reason(affinity, changes, row):
    assert decided(affinity, **changes) == row


@pytest.mark.parametrize(
    ("unknown", "why"), [(None, "this system does not bind threads to CPUs"), ("OSError: no", "OSError: no")]
)
def test_without_facts_nothing_is_done(unknown, why):
    found = dataclasses.replace(environment.read(), cpu_facts=None, cpus_unknown=unknown)
    row = ITEM.decide(found, PerfConfig())
    assert (row.status, row.before, row.why) == ("not applicable", None, why)


class OneThread:
    """The only thread of a process."""

    def __init__(self):
        self.mask = parse("0-7")

    def all(self):
        return [1]

    def get(self, thread):
        return self.mask

    def set(self, thread, cpus):
        self.mask = cpus


@pytest.fixture
def thread(monkeypatch):
    only = OneThread()
    owner = Affinity(only)
    monkeypatch.setattr(affinity_item, "AFFINITY", owner)
    return only


def apply():
    found = dataclasses.replace(environment.read(), cpu_facts=FACTS)
    return ITEM.apply(Fit(config=PerfConfig(), environment=found, step=0, memory=dict))


def test_threads_are_bound_until_it_is_closed(thread):
    bound = apply()
    assert thread.mask == parse("4-7")
    bound.closed()
    bound.closed()
    assert thread.mask == parse("0-7")


def test_a_fit_that_is_freed_restores_the_masks(thread):
    bound = apply()
    assert thread.mask == parse("4-7")
    del bound
    assert thread.mask == parse("0-7")


EXITS = """
    import atexit, dataclasses
    atexit.register(lambda: print(sorted(thread.mask)))
    from perf_callbacks import PerfConfig
    from perf_callbacks.affinity import item
    from perf_callbacks.kernel.fit import environment
    from perf_callbacks.kernel.fit.item import Fit
    from perf_callbacks.kernel.process.cpu_masks import Affinity
    from perf_callbacks.kernel.process.cpu_sets import CpuFacts, Gpu, Machine, parse
    class OneThread:
        mask = parse("0-3")
        def all(self):
            return [1]
        def get(self, _):
            return self.mask
        def set(self, _, cpus):
            self.mask = cpus
    thread = OneThread()
    item.AFFINITY = Affinity(thread)
    machine = Machine(nodes={0: parse("0-1"), 1: parse("2-3")})
    facts = CpuFacts(mask=thread.mask, machine=machine, gpu=Gpu(pci="0000:1b:00.0", node=1))
    found = dataclasses.replace(environment.read(), cpu_facts=facts)
    bound = item.ITEM.apply(Fit(config=PerfConfig(affinity="node"), environment=found, step=0, memory=dict))
    print(sorted(thread.mask))
"""


def test_at_interpreter_exit_the_masks_of_an_open_fit_are_restored():
    environ = {**os.environ, "PYTHONPATH": str(Path(perf_callbacks.__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(EXITS)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=280)
    assert (done.stdout, done.stderr) == ("[2, 3]\n[0, 1, 2, 3]\n", "")
