"""Location of a fit (directory, device, rank), and the journal record that opens the fit."""

import logging
import os
import platform
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from perf_callbacks.kernel.clock import unix_time
from perf_callbacks.kernel.fit import chain, identity, meshes
from perf_callbacks.kernel.foreign_errors import suppress
from perf_callbacks.kernel.process import device, packages
from perf_callbacks.kernel.process.device_facts import Timing
from perf_callbacks.kernel.process.waits import WAITS
from perf_callbacks.kernel.records import interim, signs_of_life
from perf_callbacks.kernel.records.fit_records import Amounts, Run
from perf_callbacks.kernel.records.journal_file import FOLDER, FileJournal, Journal
from perf_callbacks.kernel.settings.config import PerfConfig
from perf_callbacks.kernel.settings.output_directory import filled
from perf_callbacks.kernel.settings.resolution import Settings
from perf_callbacks.version import __version__

log = logging.getLogger("perf_callbacks")


@dataclass(frozen=True, kw_only=True, slots=True)
class FitLocation:
    """What the integration of a fit knows about its output, device and ranks."""

    integration: str
    directory: Path
    directory_of_all: bool = False
    """True if all ranks use the directory of rank 0, because only rank 0 knows the right one."""
    device: torch.device
    rank: int = 0
    world_size: int = 1
    devices: int = 1
    data_parallel: int | None = None
    """Ranks with different samples; ranks that share their samples count once. None: each has its own."""
    ambiguous: str | None = None
    """Why `data_parallel`, and with it the rates of the job and per device, is unknown."""
    step: int = 0
    carried: Mapping[str, Any] | None = None
    """`Recorder.state` in the checkpoint from which this fit resumes. Empty: it has none. None: no resume."""
    restore_seconds: float | None = None
    """Reading the checkpoint, before the fit. None: there was no checkpoint, or the time is unknown."""


class Ambiguity:
    """Says if it is unknown, by now, which ranks share their samples. Rank 0 warns once."""

    def __init__(self, location: FitLocation) -> None:
        self._location, self._transfers, self._warned = location, WAITS.transfers, False

    def __call__(self, step: int) -> bool:
        """Return True if it is unknown after this step. A pipeline has transfers in each step, a metric in few."""
        why, transfers = self._location.ambiguous, WAITS.transfers - self._transfers
        if why is None and self._location.data_parallel is None and transfers >= max(1, step - self._location.step):
            why = "ranks exchange tensors in pairs, as the stages of a pipeline do"
        if why is not None and self._location.rank == 0 and not self._warned:
            self._warned = True
            log.warning("perf_callbacks: rates of the whole job are unknown: %s; %s.", why, meshes.ADVICE)
        return why is not None


def opening(settings: Settings, location: FitLocation, timing: Timing, training: Mapping[str, Any]) -> Run:
    """A resumed fit keeps its run id."""
    carried, where = location.carried or {}, device.device_at(location.device)
    return Run(
        run_id=run_id(location),
        attempt=int(carried.get("attempt") or 0) + 1,
        step=location.step,
        rank=location.rank,
        world_size=location.world_size,
        device=where.name,
        tensor_cores=where.features().tensor_cores,
        devices=location.devices,
        data_parallel=None if location.ambiguous else location.data_parallel or location.world_size,
        timeline="host" if timing.timeline is None else "device",
        unstaged=timing.unstaged,
        door=location.integration,
        versions={
            "perf_callbacks": __version__,
            "python": platform.python_version(),
            **packages.loaded(),
            **packages.drivers(),
        },
        config=asdict(settings.config),
        from_env=settings.from_env,
        from_file=settings.from_file,
        started_unix=unix_time(),
        process_seconds=chain.process_seconds(),
        restore_seconds=location.restore_seconds,
        **chain.uptime(),
        **signs_of_life.own_process(),
        resumed_unix=chain.number(carried, "started_unix"),
        **identity.of_program(os.environ),
        **training,
    )


def run_id(location: FitLocation) -> str:
    return str((location.carried or {}).get("run_id") or uuid.uuid4().hex)


def earlier(location: FitLocation) -> Amounts:
    """Return this rank's amounts in earlier attempts. Unknown if the checkpoint is not of this rank and step."""
    carried = location.carried or {}
    if location.step == 0 and location.carried is None:
        return Amounts()
    if (carried.get("rank"), carried.get("step")) != (location.rank, location.step):
        return Amounts(samples=None, tokens=None)
    return Amounts(samples=carried.get("samples"), tokens=carried.get("tokens"))


def data_parallel(accelerator: Any) -> int | None:
    parallelism = getattr(accelerator, "parallelism_config", None)  # accelerate >= 1.10
    if parallelism is None:
        return None
    return max(1, int(accelerator.num_processes) // int(parallelism.non_data_parallel_size))


def by_meshes(location: FitLocation, model: torch.nn.Module) -> FitLocation:
    """If the framework gave no data-parallel size, take it from the device meshes of the parameters."""
    if location.world_size == 1 or location.data_parallel is not None:
        return location
    try:
        return replace(location, data_parallel=meshes.data_parallel(model, location.world_size))
    except meshes.Ambiguous as why:
        return replace(location, ambiguous=str(why))


def of_loop(model: torch.nn.Module, carried: Mapping[str, Any], data_parallel: int | None) -> FitLocation:
    """Return the location of a plain loop: the device of its model, and its rank in torch's process group."""
    parameter = next(model.parameters(), None)
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world_size = torch.distributed.get_world_size() if distributed else 1
    location = FitLocation(
        integration="loop",
        directory=Path(),
        device=torch.device("cpu") if parameter is None else parameter.device,
        rank=torch.distributed.get_rank() if distributed else 0,
        world_size=world_size,
        data_parallel=data_parallel,
        step=int(carried.get("step", 0)),
        carried=carried or None,
    )
    if world_size % (data_parallel or 1):
        why = f"data_parallel={data_parallel} does not divide {world_size} ranks"
        return replace(location, data_parallel=None, ambiguous=why)
    return by_meshes(location, model)


def output_directory(config: PerfConfig, location: FitLocation, run: Run, *, id_shared: bool) -> Path | None:
    """None: `output_dir` is not set, or the journal is off. `id_shared`: all ranks have the same run id."""
    if config.output_dir is None or not config.journal:
        return None
    shared = id_shared or location.world_size == 1 or bool((location.carried or {}).get("run_id"))
    if not shared and "{run}" in config.output_dir.replace("{{", ""):
        log.warning(
            "perf_callbacks: rank %d doesn't know the id of rank 0's run: {run} in output_dir is the job's id.",
            location.rank,
        )
    run_id = run.run_id if shared else None
    return Path(filled(config.output_dir, job=run.job_id, run=run_id, host=run.host)).expanduser()


def new_journal(config: PerfConfig, rank: int, directory: Path, began: float, clock: Callable[[], float]) -> Journal:
    if not config.journal:
        return Journal()
    return FileJournal(
        directory.expanduser() / FOLDER / f"rank{rank}.jsonl",
        max_bytes=config.max_journal_mb * 1_000_000,
        complain=partial(log.warning, "perf_callbacks: %s"),
        began=began,
        clock=clock,
    )


def last_sign(journal: Journal) -> float | None:
    """Return when a journal or its summary file was written last. None: there is no journal file."""
    with suppress(OSError):
        if journal.path is not None and journal.path.exists():
            files = (journal.path, interim.path_of(journal.path))
            return max([file.stat().st_mtime for file in files if file.exists()], default=None)
    return None
