"""Jobs: ranks that run one program, each a process of its own."""

import json
import time
from pathlib import Path

from jobs.processes import TESTS, free_port, rank_environ, start

TORCH = ("pytest", "trainings.models", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel")
IMPORTS = {
    "loop": (*TORCH, "perf_callbacks.loop"),
    "accelerate": ("torch._dynamo", "trainings.accelerated", "perf_callbacks.accelerate"),
    "transformers": ("torch._dynamo", "trainings.models", "perf_callbacks.transformers"),
    "lightning": ("torch._dynamo", "trainings.lightning_kit", "lightning.pytorch", "perf_callbacks.lightning"),
}
"""What a process of each integration needs."""

PROMPT = 120.0
"""Seconds in which a process ends, on a busy machine."""


class Job:
    """The ranks of a job, from the start of its block. Whatever happens, none outlives the block.

    Args:
        program: A file, of this folder if it is no path, or source code.
        directory: Of the program, of what each rank prints, and of its facts.
        imports: What the ranks need, imported once for all jobs.
        world_size: Number of ranks. A single one is told nothing of ranks.
        plan: What all ranks are told.
        plans: By rank: what a rank is told otherwise.
        environ: Of all ranks.
        environs: By rank: what is different in its environment.
    """

    def __init__(
        self, program, directory, *, imports=IMPORTS["loop"], world_size=2, plan=None, plans=None, environ=None,
        environs=None,
    ):  # fmt: skip
        self.directory, self.imports, self.world_size = Path(directory), imports, world_size
        self.directory.mkdir(exist_ok=True)
        self.program = TESTS / "jobs" / program if "\n" not in str(program) else self.directory / "program.py"
        if "\n" in str(program):
            self.program.write_text(program, encoding="utf-8")
        everyone = range(world_size)
        usual = {"directory": str(directory), **(plan or {})}
        self.plans = [usual | (plans or {}).get(rank, {}) for rank in everyone]
        self.environs = [{**(environ or {}), **(environs or {}).get(rank, {})} for rank in everyone]
        self.processes = []

    def __enter__(self):
        port = free_port()
        for rank in range(self.world_size):
            told = rank_environ(rank, self.world_size, port) if self.world_size > 1 else {}
            self.processes.append(
                start(
                    self.program,
                    json.dumps(self.plans[rank]),
                    imports=self.imports,
                    environ=told | self.environs[rank],
                    output=self.directory / f"rank{rank}.out",
                    errors=self.directory / f"rank{rank}.err",
                )
            )
        return self

    def __exit__(self, error, *_):
        for rank, process in enumerate(self.processes):
            process.kill()
            process.wait()
            if error is not None:
                print(f"rank {rank}: {self.errors(rank)}")

    def to_its_end(self):
        """Run the whole job, whose ranks end by themselves."""
        with self:
            self.assert_ended()
        return self

    def facts(self, rank):
        """What the rank has left so far."""
        path = self.directory / f"rank{rank}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def output(self, rank):
        return (self.directory / f"rank{rank}.out").read_text()

    def errors(self, rank):
        return (self.directory / f"rank{rank}.err").read_text()

    def until(self, condition):
        """Wait, as long as no rank fails. The time limit of pytest ends a wait that lasts too long."""
        while not condition():
            failed = [rank for rank, process in enumerate(self.processes) if process.poll() not in {None, 0, -9}]
            assert not failed, self.errors(failed[0])
            time.sleep(0.02)

    def until_step(self, step, *ranks):
        self.until(lambda: all(self.facts(rank).get("step", 0) >= step for rank in ranks))

    def assert_ended(self, *ranks):
        """They end by themselves; all of them, if no rank is named."""
        processes = [self.processes[rank] for rank in ranks or range(self.world_size)]
        self.until(lambda: all(process.poll() is not None for process in processes))
        assert {process.returncode for process in processes} == {0}
