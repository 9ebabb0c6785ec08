"""Jobs of several ranks, each a process of its own that trains through a door; see `integration_process`."""

import json
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from forked import start
from integration_process import Plan
from launching import free_port, rank_environ
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Summary, Window

IMPORTS = {
    "loop": ("torch._dynamo", "integration_process", "perf_callbacks.loop"),
    "accelerate": ("torch._dynamo", "integration_process", "trainings.accelerated", "perf_callbacks.accelerate"),
    "transformers": ("torch._dynamo", "integration_process", "trainings.models", "perf_callbacks.transformers"),
    "lightning": ("torch._dynamo", "integration_process", "perf_callbacks.lightning"),
}
WINDOW = 5
AGREE = 5.0
PROMPT = 60.0
"""Seconds within which a process that may end has ended, on a busy machine."""
NO_WAIT = 4.0
"""Fewer seconds than any wait of ours would take: on a busy machine, a thread may get no CPU for one."""


@dataclass
class Job:
    """The ranks of a job. Whatever happens, none outlives its test."""

    directory: Path
    door: str = "loop"
    world_size: int = 2
    plan: dict = field(default_factory=dict)
    own: dict = field(default_factory=dict)
    """Of some ranks: what they do otherwise."""
    environ: dict = field(default_factory=dict)
    """Of some ranks: what they are told otherwise."""

    def __enter__(self):
        port = free_port()
        self.directory.mkdir(exist_ok=True)
        self.plans = [
            Plan(
                directory=str(self.directory),
                door=self.door,
                rank=rank,
                world_size=self.world_size,
                **{**self.plan, **self.own.get(rank, {})},
            )
            for rank in range(self.world_size)
        ]
        self.processes = [self._start(plan, port) for plan in self.plans]
        return self

    def _start(self, plan, port):
        environ = {
            "ACCELERATE_USE_CPU": "true",
            "PERF_CALLBACKS_WINDOW": str(WINDOW),
            **rank_environ(plan.rank, plan.world_size, port),
            **self.environ.get(plan.rank, {}),
        }
        return start(
            "integration_process.py",
            json.dumps(asdict(plan)),
            imports=IMPORTS[self.door],
            environ=environ,
            output=self.directory / f"rank{plan.rank}.out",
            errors=self.directory / f"rank{plan.rank}.err",
        )

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def facts(self, rank):
        path = self.directory / f"rank{rank}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def said(self, rank):
        return (self.directory / f"rank{rank}.err").read_text()

    def until(self, condition, seconds=90.0):
        deadline = time.monotonic() + seconds
        while not condition():
            failed = [rank for rank, process in enumerate(self.processes) if process.poll() not in {None, 0, -9}]
            assert not failed, self.said(failed[0])
            assert time.monotonic() < deadline, [self.said(rank) for rank in range(self.world_size)]
            time.sleep(0.02)

    def until_step(self, step, *ranks):
        self.until(lambda: all(self.facts(rank).get("step", 0) >= step for rank in ranks))

    def assert_ended(self, *ranks):
        """They end by themselves, soon after their last step."""
        self.until(lambda: all(self.facts(rank).get("done") for rank in ranks))
        deadline = time.monotonic() + PROMPT
        for rank in ranks:
            assert self.processes[rank].wait(max(0.1, deadline - time.monotonic())) == 0, self.said(rank)

    def assert_unharmed(self, *ranks, agree=AGREE - 1, warnings=0):
        """All that they did is counted, nothing held them up, and next to nothing was said of it."""
        for rank in ranks:
            facts, plan = self.facts(rank), self.plans[rank]
            assert len(facts["got"]) == plan.steps
            if plan.door == "loop":
                assert facts["enter_seconds"] < agree
                assert facts["exit_seconds"] < NO_WAIT
                assert max(facts["waits"]) < plan.step_seconds + NO_WAIT
            if plan.measured:
                (summary,) = records(self.directory, Summary, rank=rank)
                truth = [sum(column) for column in list(zip(*self.got(rank), strict=True))[:2]]
                assert [summary.steps, summary.samples, summary.tokens] == [plan.steps, *truth]
                assert summary.failure is None
            told = [line for line in self.said(rank).splitlines() if re.search(r"\bperf_callbacks(:| [a-z])", line)]
            assert len(told) <= warnings, told
            assert not [word for word in ("Traceback", "terminate called", "Error in") if word in self.said(rank)]

    def got(self, rank):
        """What went through the model: samples, tokens and useful tokens of each step."""
        return [(rows, rows * columns, useful) for rows, columns, useful in self.facts(rank)["got"]]

    @property
    def windows(self):
        return records(self.directory, Window)

    @property
    def rows(self):
        return [row for row in self.facts(0)["rows"] if "perf/step_time" in row]
