"""FLOPs, parameters and activations by module: as text, as values for JSON, and as a table of the report."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.module_records import APART, ModuleWork
from perf_callbacks.kernel.settings.config import LONGEST_TEXT
from perf_callbacks.kernel.units import GB
from perf_callbacks.profiles.heaviest import MOST_HEAVIEST
from perf_callbacks.report import units
from perf_callbacks.report.history import Attempt, possible
from perf_callbacks.report.layout import COLUMNS, aligned, card, clean, ends, listed
from perf_callbacks.report.tables import CODE, NUMBER, Table
from perf_callbacks.report.units import DASH, percent, size

HEADINGS = ("module", "modules", "FLOPs", "share", "parameters", "activations")


def facts(fits: Sequence[Attempt]) -> list[dict[str, object]]:
    return [
        {
            "rank": fit.run.rank,
            "step": None if count is None else count.step,
            "source": None if count is None else count.source,
            "model_flops": None if count is None else count.model_flops,
            "hardware_flops": None if count is None else count.hardware_flops,
            "modules": [] if count is None else [asdict(line) for line in count.modules],
        }
        for fit in fits
        for count in [last_count(fit)]
    ]


def render(fits: Sequence[Attempt], columns: int = COLUMNS) -> str:
    """Ranks with equal FLOPs share a table."""
    alike: dict[tuple[ModuleWork, ...], tuple[list[int], Flops | None]] = {}
    for fit in fits:
        count = last_count(fit)
        ranks, _ = alike.setdefault(() if count is None else count.modules, ([], count))
        ranks.append(fit.run.rank)
    return "\n".join([_part(ranks, count, columns) for ranks, count in alike.values()])


def table(fit: Attempt) -> Table | None:
    """None: no step was counted by module."""
    count = last_count(fit)
    if count is None:
        return None
    rows = [*_rows(count, LONGEST_TEXT)]
    kinds = (CODE, *[NUMBER] * (len(HEADINGS) - 1))
    rest = f" The ten heaviest of {len(rows)} rows." if len(rows) > MOST_HEAVIEST else ""
    note = f"From step {count.step:,}. Share: of all executed FLOPs.{rest}"
    return Table("FLOPs by module", [*zip(HEADINGS, kinds, strict=True)], rows[:MOST_HEAVIEST], note)


def last_count(fit: Attempt) -> Flops | None:
    """The latest count with modules, rather of a whole step than of a part."""
    counts = [count for count in fit.records(Flops) if count.modules]
    whole = [count for count in counts if count.whole_step]
    return next(iter((whole or counts)[-1:]), None)


def _part(ranks: Sequence[int], count: Flops | None, columns: int) -> str:
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed(ranks)}"
    if count is None:
        why = "no step was counted by module, or counting is off"
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
            ends(clean(line.name, LONGEST_TEXT), longest),
            DASH if line.path in APART and not line.modules else f"{line.modules:,}",
            units.count(line.hardware_flops) if possible(line.hardware_flops) else DASH,
            percent(share),
            DASH if line.parameters is None else f"{line.parameters:,}",
            DASH if held is None or not possible(held) else size(held / GB),
        )
