"""Warn if torchrun started several processes, but each process trains a model of its own."""

import os
import sys
from collections.abc import Mapping

import torch
from typing_extensions import override

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.setup import Training
from perf_callbacks.kernel.records.fit_records import Record, Summary

OTHERS = ("bagua", "horovod", "mpi4py", "torch_xla", "torchft")
"""Libraries that have process groups of their own. If the program has imported a library in `OTHERS`, the processes may
train together."""

REMEDIES = {
    "lightning": "Trainer(devices=<processes per machine>, num_nodes=<machines>, strategy='ddp')",
    "transformers": "TrainingArguments(use_cpu=True), which a job on CPUs needs",
    "accelerate": "Accelerator(cpu=True) or ACCELERATE_USE_CPU=true, which a job on CPUs needs",
}
ALONE = {"transformers", "accelerate"}
"""Integrations whose framework reports by itself how many processes train together. On a machine without accelerators,
accelerate forms a process group. Without further settings, each process of the group trains alone."""
REMEDY = (
    "torch.distributed.init_process_group() and DistributedDataParallel(model) before the training; or start one "
    "process with python"
)
"""Remedy for integrations that `REMEDIES` doesn't name."""

FORMED: set[int] = set()
"""Sizes of the jobs in which this process has formed a process group. A program may close its process group and then
train on rank 0 alone. This needs no warning."""


def begin(recorder: Recorder, _training: Training) -> "UngroupedWatch | None":
    """Return an observer that checks whether the processes train together. Return None if no check is needed."""
    number = processes(os.environ)
    if recorder.run.world_size > 1:
        FORMED.add(number)
    if FORMED or number < 2 or os.environ.get("RANK") != "0":  # noqa: PLR2004 a job
        return None
    return UngroupedWatch(recorder, number)


def processes(environ: Mapping[str, str]) -> int:
    """Return the number of processes that torchrun (or accelerate's launcher) started for the job; else 1.

    >>> processes({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8"}), processes({"SLURM_NTASKS": "8"})
    (8, 1)
    """
    word = environ.get("WORLD_SIZE", "")
    return int(word) if "TORCHELASTIC_RUN_ID" in environ and word.isdecimal() and len(word) < 10 else 1  # noqa: PLR2004


class UngroupedWatch(Observer):
    """Warns once, on rank 0, that each process trains alone.

    Frameworks form the process group before the first step. A loop may form the group later. So the warning comes only
    after the first window, or at the end of a shorter fit.
    """

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder, self._number = recorder, number
        self._due = recorder.run.step + 1
        """Next step to check. The first step is checked because the group may close before the window ends."""
        self._last = recorder.run.step + recorder.config.window

    @property
    @override
    def due(self) -> int:
        return self._due

    @override
    def step_ended(self, step: int) -> None:
        self._check(last=step >= self._last)

    @override
    def record_written(self, record: Record) -> None:
        if isinstance(record, Summary) and record.steps:
            self._check(last=True)

    def _check(self, *, last: bool) -> None:
        if self._due == NEVER:
            return
        door, self._due = self._recorder.run.door, NEVER
        if grouped(door):
            FORMED.add(self._number)
        elif not last:
            self._due = self._last
        else:
            log.warning(
                "perf_callbacks: torchrun started %d processes, but they don't train together: each trains a model of "
                "its own, and figures are those of one process. Try %s.",
                self._number,
                REMEDIES.get(door, REMEDY),
            )


def grouped(door: str) -> bool:
    """Return True if processes may train together, with a process group or RPC of torch, or with another library."""
    if any(name in sys.modules for name in OTHERS):
        return True
    if door in ALONE or not torch.distributed.is_available():
        return False
    agent_set = getattr(sys.modules.get("torch.distributed.rpc.api"), "_is_current_rpc_agent_set", None)
    return torch.distributed.is_initialized() or bool(agent_set is not None and agent_set())
