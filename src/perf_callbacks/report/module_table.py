"""Tables of modules: FLOPs, parameters and activations of the counted step, and times of the profiled steps."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite

from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.module_records import APART, ITSELF, OPTIMIZER, OTHERS, OUTSIDE, ModuleWork
from perf_callbacks.kernel.records.profile_record import Profile
from perf_callbacks.report import units
from perf_callbacks.report.history import Attempt, possible
from perf_callbacks.report.layout import COLUMNS, aligned, card, clean, ends, listed
from perf_callbacks.report.tables import CODE, GIGA, NUMBER, Table
from perf_callbacks.report.units import DASH, duration, percent, size

MOST_ROWS = 10
"""Largest number of rows of the table in the report."""

LONGEST_PATH = 200
"""Largest number of characters that the report shows of a module path."""

MOST_CLASSES = 10
"""Largest number of rows for a trace that names modules by class and number, such as "Block_3"."""

HEADINGS = ("module", "modules", "FLOPs", "share", "parameters", "activations")

TIME_HEADINGS = ("module", "forward", "backward", "share", "MFU")

_NUMBER = re.compile(r"_\d+(?=/|$)")


def facts(fits: Sequence[Attempt]) -> list[dict[str, object]]:
    """Return the FLOPs by module of each rank, as values for JSON."""
    return [
        {
            "rank": fit.run.rank,
            **{name: getattr(count, name, None) for name in ("step", "source", "model_flops", "hardware_flops")},
            "modules": [] if count is None else [asdict(line) for line in count.modules],
        }
        for fit in fits
        for count in [last_count(fit)]
    ]


def render(fits: Sequence[Attempt], columns: int = COLUMNS) -> str:
    """Render the FLOPs by module as text. Ranks with equal FLOPs share a table."""
    alike: dict[tuple[ModuleWork, ...], tuple[list[int], Flops | None]] = {}
    for fit in fits:
        count = last_count(fit)
        ranks, _ = alike.setdefault(() if count is None else count.modules, ([], count))
        ranks.append(fit.run.rank)
    return "\n".join([_part(ranks, count, columns) for ranks, count in alike.values()])


def table(fit: Attempt) -> Table | None:
    """Return a table of the modules with the most FLOPs. None means that no step was counted by module."""
    count = last_count(fit)
    if count is None:
        return None
    rows = [*_rows(count, LONGEST_PATH)]
    kinds = (CODE, *[NUMBER] * (len(HEADINGS) - 1))
    more = f" The ten heaviest of {len(rows)} rows." if len(rows) > MOST_ROWS else ""
    note = f"From step {count.step:,}. Share: of all executed FLOPs.{more}"
    return Table("FLOPs by module", [*zip(HEADINGS, kinds, strict=True)], rows[:MOST_ROWS], note)


def last_count(fit: Attempt) -> Flops | None:
    """Return the most recent FLOP count that lists modules.

    If a whole step was counted, counts of a part of a step are ignored.
    """
    counts = [count for count in fit.of(Flops) if count.modules]
    whole = [count for count in counts if count.whole_step]
    return next(iter((whole or counts)[-1:]), None)


def _part(ranks: Sequence[int], count: Flops | None, columns: int) -> str:
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed(ranks)}"
    if count is None:
        why = "no step was counted by module, counting is off, or an older version wrote the journal"
        return card([f"{who}: no FLOPs by module: {why}"], columns)
    executed, model = units.count(count.hardware_flops), units.count(count.model_flops)
    title = f"{who}, step {count.step:,}, {clean(count.source)}: {executed} FLOPs executed, {model} of the model"
    rows = aligned([HEADINGS, *_rows(count, max(16, columns - 52))], right=range(1, len(HEADINGS)))
    return "\n".join([card([title], columns), *[f"  {row}" for row in rows]])


def _rows(count: Flops, longest: int) -> Iterable[tuple[str, ...]]:
    for line in count.modules:
        share = line.hardware_flops / count.hardware_flops if count.hardware_flops > 0 else None
        held = line.activation_bytes
        yield (
            ends(clean(line.name, LONGEST_PATH), longest),
            DASH if line.path in APART and not line.modules else f"{line.modules:,}",
            units.count(line.hardware_flops) if possible(line.hardware_flops) else DASH,
            percent(share),
            DASH if line.parameters is None else f"{line.parameters:,}",
            DASH if held is None or not possible(held) else size(held / GIGA),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTime:
    """Busy time of a module in the profiled steps. Submodules that have their own row are not included."""

    name: str
    seconds: float
    backward_seconds: float
    """Part of `seconds` that the backward took. The recomputation of activations counts as backward."""
    mfu: float | None = None
    """Model FLOPs divided by `seconds` and by the device's peak. None means that MFU is unknown, or that the module has
    no matrix products."""
    at_least: bool = False
    """True if `mfu` is a lower bound."""

    def cells(self, busy_seconds: float) -> tuple[str, ...]:
        """Return the cells of a table row: name, forward, backward, share of the busy time, MFU."""
        share = self.seconds / busy_seconds if busy_seconds > 0 else None
        mfu = f"{'≥ ' if self.at_least and self.mfu is not None else ''}{percent(self.mfu)}"
        backward = None if self.name == OPTIMIZER else self.backward_seconds
        forward = None if self.name in {OPTIMIZER, OUTSIDE} else max(0.0, self.seconds - self.backward_seconds)
        return self.name, duration(forward), duration(backward), percent(share), mfu


def of_trace(profile: Profile) -> list[ModuleTime]:
    """Return the times of a trace's modules, the longest time first.

    If there are more than `MOST_CLASSES` modules, modules of the same class share a row.
    """
    times, backward = profile.module_seconds or {}, profile.module_backward_seconds or {}
    if len(times) <= MOST_CLASSES:
        return [*_times(times, backward)]
    found: dict[str, tuple[float, float]] = {}
    for path, seconds in times.items():
        name = _NUMBER.sub("_*", path)
        one = found.get(name, (0.0, 0.0))
        found[name] = one[0] + seconds, one[1] + backward.get(path, 0.0)
    heaviest = sorted(found.items(), key=lambda item: -item[1][0])
    kept, rest = heaviest[:MOST_CLASSES], heaviest[MOST_CLASSES:]
    if rest:
        kept.append((f"{len(rest):,} more", (sum([one[0] for _, one in rest]), sum([one[1] for _, one in rest]))))
    return [*_times({name: one[0] for name, one in kept}, {name: one[1] for name, one in kept})]


def of_run(profile: Profile, fit: Attempt, peak_flops_per_second: float | None) -> list[ModuleTime]:
    """Return the times and MFU of the modules in a run's profile, the longest time first.

    Args:
        profile: The profile.
        fit: The attempt of the rank that wrote the profile.
        peak_flops_per_second: Peak of one device. None means that the peak and MFU are unknown.
    """
    times, backward = profile.module_seconds or {}, profile.module_backward_seconds or {}
    count = last_count(fit)
    executed = None if count is None else _executed(profile, fit)
    if count is None or executed is None or not peak_flops_per_second or count.model_flops <= 0 or OTHERS in times:
        return [*_times(times, backward)]
    scale = executed / count.model_flops / max(1, fit.run.devices) / peak_flops_per_second
    flops = _folded(count, [path for path in times if path not in APART])
    low = count.lower_bound or any([line.path == OTHERS and line.model_flops > 0 for line in count.modules])
    mfu = {path: flops[path] * scale / times[path] for path in flops if flops[path] > 0 and times[path] > 0}
    return [*_times(times, backward, mfu, at_least=low)]


def peak(fit: Attempt, fits: Iterable[Attempt]) -> float | None:
    """Return the peak of a rank's device in FLOPs per second.

    The peak may come from another rank with the same type of device.
    """
    peaks = (one.peak_flops_per_second for one in (fit, *fits) if one.run.device == fit.run.device)
    return next(filter(None, peaks), None)


def _times(
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
    """Return the sum of the model FLOPs of all profiled steps, or None if it is unknown."""
    if profile.first_step is None or not profile.steps or profile.steps > len(fit.step):
        return None
    place = bisect_left(fit.step, profile.first_step)
    steps = slice(place, place + profile.steps)
    total = sum(fit.columns["model_flops"][steps])
    whole = [*fit.step[steps]] == [*range(profile.first_step, profile.first_step + profile.steps)]
    return total if whole and isfinite(total) else None


def _folded(count: Flops, paths: Sequence[str]) -> dict[str, int]:
    """Return the model FLOPs of a counted step for each module path in `paths`.

    If a module is not in `paths`, its FLOPs are added to its nearest parent module in `paths`.
    """
    flops = dict.fromkeys(paths, 0)
    for line in count.modules:
        around = [path for path in paths if not path or f"{line.path}.".startswith(f"{path}.")]
        if around and line.path not in APART:
            flops[max(around, key=len)] += line.model_flops
    return flops


def time_table(rows: Iterable[ModuleTime], profile: Profile) -> list[tuple[str, ...]]:
    """Return the headings and rows of a table, or an empty list if no modules are known.

    The MFU column is left out if no module's MFU is known.
    """
    found = [TIME_HEADINGS, *[one.cells(profile.busy_seconds) for one in rows]]
    known = any([cells[-1] != DASH for cells in found[1:]])
    return [] if len(found) == 1 else found if known else [cells[:-1] for cells in found]
