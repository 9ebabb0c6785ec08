"""Warns if torchrun started several processes, but each trains a model of its own."""

import os
import sys
from collections.abc import Mapping

import torch
from typing_extensions import override

from perf_callbacks.kernel.engine.observer import Observer
from perf_callbacks.kernel.engine.steps import NEVER
from perf_callbacks.kernel.fit.recorder import Recorder, log
from perf_callbacks.kernel.fit.training_objects import FitContext
from perf_callbacks.kernel.records.fit_records import Record, Summary

OTHERS = ("bagua", "horovod", "mpi4py", "torch_xla", "torchft")
"""Libraries with process groups of their own. With one of them imported, the processes may train together."""

REMEDIES = {
    "lightning": "Trainer(devices=<processes per machine>, num_nodes=<machines>, strategy='ddp')",
    "transformers": "TrainingArguments(use_cpu=True), which a job on CPUs needs",
    "accelerate": "Accelerator(cpu=True) or ACCELERATE_USE_CPU=true, which a job on CPUs needs",
}
ALONE = {"transformers", "accelerate"}
"""Frameworks that say themselves how many train together: without accelerators, accelerate's group may train alone."""
REMEDY = (
    "torch.distributed.init_process_group() and DistributedDataParallel(model) before the training; or start one "
    "process with python"
)
"""For integrations that `REMEDIES` doesn't name."""

FORMED: set[int] = set()
"""Sizes of jobs with a group of this process, which it may close, and then rightly train on rank 0 alone."""


def begin(recorder: Recorder, _context: FitContext) -> "UngroupedWatch | None":
    number = processes(os.environ)
    if recorder.run.world_size > 1:
        FORMED.add(number)
    if FORMED or number < 2 or os.environ.get("RANK") != "0":  # noqa: PLR2004 a job
        return None
    return UngroupedWatch(recorder, number)


def processes(environ: Mapping[str, str]) -> int:
    """Return the processes that torchrun (or accelerate's launcher) started for the job; else 1.

    >>> processes({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8"}), processes({"SLURM_NTASKS": "8"})
    (8, 1)
    """
    word = environ.get("WORLD_SIZE", "")
    return int(word) if "TORCHELASTIC_RUN_ID" in environ and word.isdecimal() and len(word) < 10 else 1  # noqa: PLR2004


class UngroupedWatch(Observer):
    """Warns once, on rank 0, that each process trains alone; after a window, because a loop may form its group late."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder, self._number = recorder, number
        self._due = recorder.run.step + 1
        """The first step is checked because the group may close before the window ends."""
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
    """True: processes may train together, by a group or RPC of torch, or another library."""
    if any(name in sys.modules for name in OTHERS):
        return True
    if door in ALONE or not torch.distributed.is_available():
        return False
    agent_set = getattr(sys.modules.get("torch.distributed.rpc.api"), "_is_current_rpc_agent_set", None)
    return torch.distributed.is_initialized() or bool(agent_set is not None and agent_set())
