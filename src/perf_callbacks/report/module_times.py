"""Time of modules in profiled steps, and MFU by module from the FLOPs of the counted step."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.module_records import APART, ITSELF, OPTIMIZER, OTHERS, OUTSIDE
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.profiles.heaviest import MOST_HEAVIEST
from perf_callbacks.report import module_table
from perf_callbacks.report.history import Attempt
from perf_callbacks.report.units import DASH, duration, percent

_NUMBER = re.compile(r"_\d+(?=/|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTime:
    """Busy time without submodules that have their own row."""

    name: str
    seconds: float
    backward_seconds: float
    """Part of `seconds`, with the recomputation of activations."""
    mfu: float | None = None
    """None also if the module has no matrix products."""
    at_least: bool = False

    def cells(self, busy_seconds: float) -> tuple[str, ...]:
        share = self.seconds / busy_seconds if busy_seconds > 0 else None
        mfu = f"{'≥ ' if self.at_least and self.mfu is not None else ''}{percent(self.mfu)}"
        backward = None if self.name == OPTIMIZER else self.backward_seconds
        forward = None if self.name in {OPTIMIZER, OUTSIDE} else max(0.0, self.seconds - self.backward_seconds)
        return self.name, duration(forward), duration(backward), percent(share), mfu


HEADINGS = ("module", "forward", "backward", "share", "MFU")


def of_trace(profile: Profile) -> list[ModuleTime]:
    """The longest first. Of more than `MOST_HEAVIEST` modules, those of a class share a row."""
    times, backward = profile.module_seconds or {}, profile.module_backward_seconds or {}
    if len(times) <= MOST_HEAVIEST:
        return [*_rows(times, backward)]
    by_class: dict[str, tuple[float, float]] = {}
    for path, seconds in times.items():
        name = _NUMBER.sub("_*", path)
        pair = by_class.get(name, (0.0, 0.0))
        by_class[name] = pair[0] + seconds, pair[1] + backward.get(path, 0.0)
    heaviest = sorted(by_class.items(), key=lambda item: -item[1][0])
    kept, rest = heaviest[:MOST_HEAVIEST], heaviest[MOST_HEAVIEST:]
    if rest:
        kept.append((f"{len(rest):,} more", (sum([pair[0] for _, pair in rest]), sum([pair[1] for _, pair in rest]))))
    return [*_rows({name: pair[0] for name, pair in kept}, {name: pair[1] for name, pair in kept})]


def of_run(profile: Profile, fit: Attempt, peak_flops_per_second: float | None) -> list[ModuleTime]:
    """The longest first. `fit` is the attempt of the rank that wrote the profile."""
    times, backward = profile.module_seconds or {}, profile.module_backward_seconds or {}
    count = module_table.last_count(fit)
    executed = None if count is None else _executed(profile, fit)
    if count is None or executed is None or not peak_flops_per_second or count.model_flops <= 0 or OTHERS in times:
        return [*_rows(times, backward)]
    scale = executed / count.model_flops / max(1, fit.run.devices) / peak_flops_per_second
    flops = _folded(count, [path for path in times if path not in APART])
    low = count.lower_bound or any([line.path == OTHERS and line.model_flops > 0 for line in count.modules])
    mfu = {path: flops[path] * scale / times[path] for path in flops if flops[path] > 0 and times[path] > 0}
    return [*_rows(times, backward, mfu, at_least=low)]


def peak(fit: Attempt, fits: Iterable[Attempt]) -> float | None:
    """Perhaps from another rank with the same type of device."""
    peaks = (attempt.peak_flops_per_second for attempt in (fit, *fits) if attempt.run.device == fit.run.device)
    return next(filter(None, peaks), None)


def _rows(
    times: Mapping[str, float],
    backward: Mapping[str, float],
    mfu: Mapping[str, float] | None = None,
    *,
    at_least: bool = False,
) -> Iterable[ModuleTime]:
    for path, seconds in times.items():
        yield ModuleTime(
            name=path or ITSELF,
            seconds=seconds,
            backward_seconds=backward.get(path, 0.0),
            mfu=(mfu or {}).get(path),
            at_least=at_least,
        )


def _executed(profile: Profile, fit: Attempt) -> float | None:
    if profile.first_step is None or not profile.steps or profile.steps > len(fit.step):
        return None
    place = bisect_left(fit.step, profile.first_step)
    steps = slice(place, place + profile.steps)
    total = sum(fit.columns["model_flops"][steps])
    whole = [*fit.step[steps]] == [*range(profile.first_step, profile.first_step + profile.steps)]
    return total if whole and isfinite(total) else None


def _folded(count: Flops, paths: Sequence[str]) -> dict[str, int]:
    """Give the FLOPs of a module that is not in `paths` to its nearest parent in `paths`."""
    flops = dict.fromkeys(paths, 0)
    for line in count.modules:
        around = [path for path in paths if not path or f"{line.path}.".startswith(f"{path}.")]
        if around and line.path not in APART:
            flops[max(around, key=len)] += line.model_flops
    return flops


def table(rows: Iterable[ModuleTime], profile: Profile) -> list[tuple[str, ...]]:
    """With headings; without MFU if no module's is known. Empty: no modules are known."""
    lines = [HEADINGS, *[row.cells(profile.busy_seconds) for row in rows]]
    with_mfu = any([cells[-1] != DASH for cells in lines[1:]])
    return [] if len(lines) == 1 else lines if with_mfu else [cells[:-1] for cells in lines]
