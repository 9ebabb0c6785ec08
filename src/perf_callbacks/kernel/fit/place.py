"""Place of a fit (directory, device, rank), and the journal record that opens the fit."""

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
from perf_callbacks.kernel.settings.in_force import Settings
from perf_callbacks.kernel.settings.output_directory import filled
from perf_callbacks.version import __version__

log = logging.getLogger("perf_callbacks")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Place of a fit: what its integration knows about its output, device and ranks."""

    integration: str
    directory: Path
    """Directory of the output, if the configuration sets no other directory."""
    directory_of_all: bool = False
    """True if all ranks use the directory of rank 0, because only rank 0 knows the right directory."""
    device: torch.device
    rank: int = 0
    world_size: int = 1
    devices: int = 1
    """Number of devices that this process drives."""
    data_parallel: int | None = None
    """Number of ranks with different samples. Ranks that share their samples count once. None: each rank has its own
    samples."""
    ambiguous: str | None = None
    """Reason why `data_parallel` is unknown. If `data_parallel` is unknown, the rates of the job and the rates per
    device are unknown, too."""
    step: int = 0
    """Number of optimizer steps done before this fit."""
    carried: Mapping[str, Any] | None = None
    """State from `Recorder.state`, in the checkpoint from which this fit resumes. Empty: the checkpoint has no such
    state. None: the fit doesn't resume."""
    restore_seconds: float | None = None
    """Seconds that the framework needed to read the checkpoint, before the fit. None means that there was no
    checkpoint, or that the time is unknown."""


class Ambiguity:
    """Says if it is unknown, by now, which ranks share their samples. Rank 0 warns once."""

    def __init__(self, place: Place) -> None:
        self._place, self._transfers, self._warned = place, WAITS.transfers, False

    def __call__(self, step: int) -> bool:
        """Return True if it is unknown after this step. A pipeline has transfers in each step, a metric in few."""
        why, transfers = self._place.ambiguous, WAITS.transfers - self._transfers
        if why is None and self._place.data_parallel is None and transfers >= max(1, step - self._place.step):
            why = "ranks exchange tensors in pairs, as the stages of a pipeline do"
        if why is not None and self._place.rank == 0 and not self._warned:
            self._warned = True
            log.warning("perf_callbacks: rates of the whole job are unknown: %s; %s.", why, meshes.ADVICE)
        return why is not None


def opening(settings: Settings, place: Place, timing: Timing, training: Mapping[str, Any]) -> Run:
    """Return the journal record that opens a fit. A resumed fit keeps its run id."""
    carried, where = place.carried or {}, device.of(place.device)
    return Run(
        run_id=run_id(place),
        attempt=int(carried.get("attempt") or 0) + 1,
        step=place.step,
        rank=place.rank,
        world_size=place.world_size,
        device=where.name,
        tensor_cores=where.features().tensor_cores,
        devices=place.devices,
        data_parallel=None if place.ambiguous else place.data_parallel or place.world_size,
        timeline="host" if timing.timeline is None else "device",
        unstaged=timing.unstaged,
        door=place.integration,
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
        restore_seconds=place.restore_seconds,
        **chain.uptime(),
        **signs_of_life.own_process(),
        resumed_unix=chain.number(carried, "started_unix"),
        **identity.of_program(os.environ),
        **training,
    )


def run_id(place: Place) -> str:
    return str((place.carried or {}).get("run_id") or uuid.uuid4().hex)


def earlier(place: Place) -> Amounts:
    """Return the numbers of samples and tokens that this rank processed in earlier attempts.

    In a first attempt, the numbers are 0. The numbers are unknown if the checkpoint lacks the numbers of this rank and
    step, as after training without the callback.
    """
    carried = place.carried or {}
    if place.step == 0 and place.carried is None:
        return Amounts()
    if (carried.get("rank"), carried.get("step")) != (place.rank, place.step):
        return Amounts(samples=None, tokens=None)
    return Amounts(samples=carried.get("samples"), tokens=carried.get("tokens"))


def data_parallel(accelerator: Any) -> int | None:
    """Return the number of ranks with different samples. Ranks that share their samples count once.

    The number follows from accelerate's `parallelism_config`. None: there is no `parallelism_config`.
    """
    parallelism = getattr(accelerator, "parallelism_config", None)  # accelerate >= 1.10
    if parallelism is None:
        return None
    return max(1, int(accelerator.num_processes) // int(parallelism.non_data_parallel_size))


def by_meshes(place: Place, model: torch.nn.Module) -> Place:
    """Return the place with its data-parallel size.

    If the framework gave no data-parallel size, the size comes from the device meshes of the parameters.
    """
    if place.world_size == 1 or place.data_parallel is not None:
        return place
    try:
        return replace(place, data_parallel=meshes.data_parallel(model, place.world_size))
    except meshes.Ambiguous as why:
        return replace(place, ambiguous=str(why))


def of_loop(model: torch.nn.Module, carried: Mapping[str, Any], data_parallel: int | None) -> Place:
    """Return the place of a plain loop: the device of its model, and its rank in torch's process group."""
    parameter = next(model.parameters(), None)
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    world_size = torch.distributed.get_world_size() if distributed else 1
    place = Place(
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
        return replace(place, data_parallel=None, ambiguous=why)
    return by_meshes(place, model)


def output_directory(config: PerfConfig, place: Place, run: Run, *, id_shared: bool) -> Path | None:
    """Return the directory that the setting `output_dir` names, with its placeholders replaced.

    Return None if `output_dir` is not set, or if the journal is off.

    Args:
        config: Settings in force.
        place: Place of the fit.
        run: The journal record that opens the fit.
        id_shared: True if all ranks have the same run id.
    """
    if config.output_dir is None or not config.journal:
        return None
    shared = id_shared or place.world_size == 1 or bool((place.carried or {}).get("run_id"))
    if not shared and "{run}" in config.output_dir.replace("{{", ""):
        log.warning(
            "perf_callbacks: rank %d doesn't know the id of rank 0's run: {run} in output_dir is the job's id.",
            place.rank,
        )
    run_id = run.run_id if shared else None
    return Path(filled(config.output_dir, job=run.job_id, run=run_id, host=run.host)).expanduser()


def new_journal(config: PerfConfig, place: Place, directory: Path, began: float, clock: Callable[[], float]) -> Journal:
    """Return the journal of a fit. The journal's file is in a folder of `directory`."""
    if not config.journal:
        return Journal()
    return FileJournal(
        directory.expanduser() / FOLDER / f"rank{place.rank}.jsonl",
        max_bytes=config.max_journal_mb * 1_000_000,
        complain=partial(log.warning, "perf_callbacks: %s"),
        began=began,
        clock=clock,
    )


def last_sign(journal: Journal) -> float | None:
    """Return the time at which a journal or its summary file was written most recently.

    None: there is no journal file.
    """
    with suppress(OSError):
        if journal.path is not None and journal.path.exists():
            files = (journal.path, interim.path_of(journal.path))
            return max([file.stat().st_mtime for file in files if file.exists()], default=None)
    return None
