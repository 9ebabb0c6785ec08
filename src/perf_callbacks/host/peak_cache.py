"""Peaks that were measured, once for all ranks of a machine and kept for a day."""

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from perf_callbacks.core.peaks import DISTURBED, TERA, Peaks, canonical
from perf_callbacks.host import device as devices, matmul_peak
from perf_callbacks.host.matmul_peak import Measured

FRESH_SECONDS = 86400.0
"""After which what was found is measured anew; the better of both counts."""

PATIENCE = 3.0
"""Seconds that a rank waits for what the first rank of its machine measures."""

_LOOK_EVERY = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """What a measured peak holds for."""

    node: str
    device: str
    processor: str
    threads: int
    cpus: int | None
    """CPUs that the process may run on, where it is known."""
    torch: str
    precision: str
    """Of float32 matmuls."""


def conditions(device: torch.device) -> Conditions:
    """Those of this process."""
    return Conditions(
        node=platform.node(),
        device=devices.name(device),
        processor=_processor(),
        threads=torch.get_num_threads(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        torch=str(torch.__version__),
        precision=torch.get_float32_matmul_precision(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cache_directory() -> Path:
    """Where measured peaks are kept: `perf_callbacks` in the user's cache directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perf_callbacks"
    except RuntimeError:  # nobody's process: nothing is kept
        return Path(os.devnull) / "perf_callbacks"


class Cache:
    """What was measured, by its conditions: in a small JSON file. Where that can't be written, nothing is kept."""

    def __init__(self, directory: Path, where: Conditions) -> None:
        name = hashlib.sha256(json.dumps(asdict(where)).encode()).hexdigest()[:16]
        self.path = directory / f"peak-{name}.json"
        self._where = where

    def read(self, *, fresh: bool) -> dict[str, Measured]:
        """What is kept; with `fresh` only if it is not older than a day. Anything odd is nothing."""
        try:
            if fresh and time.time() - self.path.stat().st_mtime > FRESH_SECONDS:
                return {}
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["conditions"] != asdict(self._where):
                return {}
            kept = {str(name): Measured(**found) for name, found in content["measured"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        return {name: found for name, found in kept.items() if _sound(found)}

    def write(self, measured: Mapping[str, Measured]) -> bool:
        """Keep it, whole or not at all. Whether it is kept."""
        unfinished = self.path.with_suffix(f".{os.getpid()}.tmp")
        content = {"conditions": asdict(self._where), "measured": {name: asdict(it) for name, it in measured.items()}}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(content, indent=2), encoding="utf-8")
            unfinished.replace(self.path)
        except OSError:
            return False
        return True

    def forget(self) -> None:
        """What was measured turned out to be wrong."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError:
            return


def _sound(found: Measured) -> bool:
    numbers = (found.flops_per_second, found.threads, found.size, 1 if found.cpu_share is None else found.cpu_share)
    plain = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    return plain and all(math.isfinite(number) for number in numbers) and found.flops_per_second > 0


_KNOWN: dict[Conditions, dict[str, Measured]] = {}
"""What this process knows already."""

_WAITED: set[Conditions] = set()
"""For what it has waited already."""


def measured_peaks(
    device: torch.device,
    dtypes: Iterable[str],
    *,
    local_rank: int = 0,
    directory: Path | None = None,
    measure: Callable[[torch.device, Iterable[str]], dict[str, Measured]] = matmul_peak.measure,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Peaks | None:
    """The peaks of these dtypes, measured now or less than a day ago. None if none of them is to be had.

    On a CPU, which ranks share, the first rank of a machine measures: the others wait for its file, three seconds at
    most and once in a process, and do without if it doesn't come. There is no collective.
    """
    where = conditions(device)
    cache = Cache(directory or cache_directory(), where)
    known = _KNOWN.setdefault(where, {})
    names = [canonical(dtype) for dtype in dtypes]
    wanted = [name for name in names if name in matmul_peak.DTYPES and name not in known]
    if wanted:
        kept = cache.read(fresh=True)
        known |= {
            name: kept[name] for name in wanted if name in kept and not (local_rank == 0 and kept[name].disturbed)
        }
    missing = [name for name in wanted if name not in known]
    if missing and (local_rank == 0 or device.type != "cpu"):
        known |= _better(measure(device, missing), cache.read(fresh=False))
        cache.write(cache.read(fresh=True) | known)
    elif missing and where not in _WAITED:
        _WAITED.add(where)
        known |= _wait(missing, cache, clock=clock, sleep=sleep)
    found = {name: known[name] for name in names if name in known}
    return _peaks(found, where) if found else None


def forget(device: torch.device, directory: Path | None = None) -> None:
    """Measure anew when it is asked for the next time: more was done than what was measured allows."""
    where = conditions(device)
    _KNOWN.pop(where, None)
    _WAITED.discard(where)
    Cache(directory or cache_directory(), where).forget()


def _take(names: Iterable[str], found: Mapping[str, Measured]) -> dict[str, Measured]:
    return {name: found[name] for name in names if name in found}


def _better(now: Mapping[str, Measured], before: Mapping[str, Measured]) -> dict[str, Measured]:
    return {name: max(it, before.get(name, it), key=lambda each: each.flops_per_second) for name, it in now.items()}


def _wait(
    names: list[str], cache: Cache, *, clock: Callable[[], float], sleep: Callable[[float], None]
) -> dict[str, Measured]:
    """What another process writes meanwhile; what it wrote long ago if it doesn't."""
    until = clock() + PATIENCE
    found = _take(names, cache.read(fresh=True))
    while len(found) < len(names) and clock() < until:
        sleep(_LOOK_EVERY)
        found = _take(names, cache.read(fresh=True))
    return _take(names, cache.read(fresh=False)) | found


def _peaks(found: Mapping[str, Measured], where: Conditions) -> Peaks:
    by_dtype = {name: it.flops_per_second for name, it in found.items()}
    rates = ", ".join(
        f"{name} {it.flops_per_second / TERA:.3g} TFLOPS at {it.size} x {it.size}" for name, it in found.items()
    )
    threads = f" with {where.threads} thread{'s' * (where.threads > 1)}" if where.device == "cpu" else ""
    busy = f", {DISTURBED}" if any(it.disturbed for it in found.values()) else ""
    return Peaks(by_dtype, f"measured on {where.device}{threads}{busy}: {rates}", measured=True)
