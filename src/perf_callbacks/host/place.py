"""Where a fit runs, and the record that opens it."""

import platform
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from perf_callbacks.core.records import Amounts, Run
from perf_callbacks.core.settings import Settings
from perf_callbacks.host import device, meshes
from perf_callbacks.version import __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a fit runs, as its door knows it."""

    door: str
    directory: Path
    """Where output goes, unless the configuration says otherwise."""
    directory_of_all: bool = False
    """Rank 0's directory is that of all ranks, which don't know it by themselves."""
    device: torch.device
    rank: int = 0
    world_size: int = 1
    devices: int = 1
    """Devices that this process drives."""
    data_parallel: int | None = None
    """In how many parts ranks share the samples; None: each goes through its own."""
    ambiguous: str | None = None
    """Why nobody knows in how many parts ranks share the samples: then there are no rates of the job or per device."""
    step: int = 0
    """Optimizer steps done before."""
    versions: Mapping[str, str]
    """Of the frameworks."""
    carried: Mapping[str, Any] | None = None
    """What `Recorder.state` was at the checkpoint that this fit goes on from; empty if that doesn't say."""
    staged: bool = True
    """Whether the door sees the stages."""


def opening(settings: Settings, place: Place, timeline: str) -> Run:
    """The record that opens a fit: a resumed one keeps its id."""
    carried = place.carried or {}
    return Run(
        run_id=str(carried.get("run_id") or uuid.uuid4().hex),
        attempt=int(carried.get("attempt") or 0) + 1,
        step=place.step,
        rank=place.rank,
        world_size=place.world_size,
        device=device.name(place.device),
        timeline=timeline,
        door=place.door,
        versions={
            "perf_callbacks": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            **place.versions,
        },
        config=asdict(settings.config),
        from_env=settings.from_env,
        started_unix=time.time(),
    )


def earlier(place: Place) -> Amounts:
    """What earlier attempts of this rank went through: nothing if there were none, unknown where no checkpoint says.

    A checkpoint may carry the counters of an older one: training went on without us in between.
    """
    carried = place.carried or {}
    if place.step == 0 and place.carried is None:
        return Amounts()
    if (carried.get("rank"), carried.get("step")) != (place.rank, place.step):
        return Amounts(samples=None, tokens=None)
    return Amounts(samples=carried.get("samples"), tokens=carried.get("tokens"))


def data_parallel(accelerator: Any) -> int | None:
    """In how many parts ranks share the samples, by the parallelism that an `accelerate.Accelerator` was given."""
    parallelism = getattr(accelerator, "parallelism_config", None)  # accelerate >= 1.10
    if parallelism is None:
        return None
    return max(1, int(accelerator.num_processes) // int(parallelism.non_data_parallel_size))


def by_meshes(place: Place, model: torch.nn.Module) -> Place:
    """The same place, with the data-parallel size that the parameters' meshes give where the framework gave none."""
    if place.world_size == 1 or place.data_parallel is not None:
        return place
    try:
        return replace(place, data_parallel=meshes.data_parallel(model, place.world_size))
    except meshes.Ambiguous as why:
        return replace(place, ambiguous=str(why))
