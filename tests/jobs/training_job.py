"""Jobs whose ranks train through an integration, and the laws that hold for each of them."""

import re

from trainings.runs import records

from jobs.job import IMPORTS, Job
from jobs.training import Plan, amounts
from perf_callbacks.kernel.records.fit_records import Summary, Window

WINDOW = 5
AGREE = 5.0
NO_WAIT = 4.0
"""Fewer seconds than any wait of ours would take: on a busy machine, a thread may get no CPU for one."""


class TrainingJob(Job):
    """Ranks that train through `door`, by a plan of `jobs.training`."""

    def __init__(self, directory, door="loop", *, plan=None, environ=None, **options):
        self.door = door
        plan = {"door": door, **(plan or {})}
        usual = {"ACCELERATE_USE_CPU": "true", "PERF_CALLBACKS_WINDOW": str(WINDOW), "TORCHELASTIC_RUN_ID": "none"}
        super().__init__(
            "training.py", directory, imports=IMPORTS[door], plan=plan, environ=usual | (environ or {}), **options
        )

    def plan_of(self, rank):
        return Plan(**self.plans[rank])

    def end(self, *ranks):
        """Let ranks end that stay until then."""
        for rank in ranks:
            (self.directory / f"end{rank}").touch()
        self.assert_ended(*ranks)

    def ours(self, rank):
        """The lines that the callback wrote on a rank."""
        return [line for line in self.errors(rank).splitlines() if re.search(r"\bperf_callbacks(:| [a-z])", line)]

    def assert_unharmed(self, *ranks, agree=AGREE - 1, warnings=0):
        """All that they did is counted, nothing held them up, and next to nothing was said of it."""
        for rank in ranks:
            facts, plan = self.facts(rank), self.plan_of(rank)
            assert len(facts["got"]) == plan.steps
            if plan.door == "loop":
                assert facts["enter_seconds"] < agree
                assert facts["exit_seconds"] < NO_WAIT
                assert max(facts["waits"]) < plan.step_seconds + NO_WAIT
            if plan.measured and plan.closing:
                (summary,) = records(self.directory, Summary, rank=rank)
                truth = [sum(column) for column in list(zip(*self.got(rank), strict=True))[:2]]
                assert [summary.steps, summary.samples, summary.tokens] == [plan.steps, *truth]
                assert summary.failure is None
            assert len(self.ours(rank)) <= warnings, self.ours(rank)
            harm = ("Traceback", "terminate called", "Error in")
            assert not [word for word in harm if word in self.errors(rank)], self.errors(rank)

    def assert_true(self, windows):
        """Windows of the loop are what its ranks did, and those without a rank have no sums. The first is no step."""
        lasts = [window.last_step for window in windows]
        assert lasts == sorted({*lasts})
        for window in windows:
            numbers = {*range(window.first_step, window.last_step + 1)} - {1}
            done = [amounts(rank, step) for rank in range(self.world_size) for step in numbers]
            truth = [sum([rows for rows, _, _ in done]), sum([rows * columns for rows, columns, _ in done])]
            truth.append(sum([useful for _, _, useful in done]))
            sums = [window.samples, window.tokens, window.useful_tokens]
            assert window.steps == len(numbers)
            assert sums == ([None] * 3 if window.missing else truth)

    def got(self, rank):
        """What went through the model: samples, tokens and useful tokens of each step."""
        return [(rows, rows * columns, useful) for rows, columns, useful in self.facts(rank)["got"]]

    @property
    def windows(self):
        return records(self.directory, Window)

    @property
    def rows(self):
        return [row for row in self.facts(0)["rows"] if "perf/step_time" in row]
