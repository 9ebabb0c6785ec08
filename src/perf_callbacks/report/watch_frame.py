"""One frame of `perf-callbacks watch`: a recorded run as lines of styled text, the most important first.

Nothing here reads a clock, a file or the terminal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from math import fsum
from typing import NamedTuple

from perf_callbacks.kernel.process.stacks import MOST_FRAMES
from perf_callbacks.report import run_card, run_title
from perf_callbacks.report.cards import STALL
from perf_callbacks.report.history import finite
from perf_callbacks.report.layout import INDENT, clean, joined, wrapped
from perf_callbacks.report.rank_pace import RankPace, RecentLoss, recent_losses
from perf_callbacks.report.rank_table import rank_table
from perf_callbacks.report.recorded_run import RecordedRun
from perf_callbacks.report.styled_lines import NARROW, Line, Style, StyledText, cut, cut_left, styled
from perf_callbacks.report.units import duration, long_duration, percent, rate
from perf_callbacks.stragglers import text as straggler_text
from perf_callbacks.stragglers.text import WORTH_A_LINE

MOST_RANKS = 16

MOST_EVENTS = 8

MOST_SENTENCES = 3

STACK_SHARE, LEAST_FRAMES = 0.4, 3
"""Share of the terminal's rows for all stacks, and least lines of each."""

LIBRARIES = ("site-packages", "/lib/python", "\\lib\\")
"""In the path of a file that belongs to a library and not to the user's program."""

LATE_SECONDS = 10.0
"""The frame warns if no new step reaches the disk for longer. Usually, it takes five seconds."""

LEAST_COLUMNS = 20

LONGEST_BAR = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSize:
    """`rows` is None for output that may be of any length."""

    columns: int
    rows: int | None = None


def frame(run: RecordedRun, paces: Sequence[RankPace], size: TerminalSize, footer: str = "") -> list[Line]:
    """The terminal cuts the lines if it is narrower than `LEAST_COLUMNS`."""
    size = replace(size, columns=max(LEAST_COLUMNS, size.columns))
    losses = recent_losses(run)
    notes = [line for note in run_card.notes(run) for line in _wrapped(f"Note: {note}.", size.columns, "warning")]
    top = [*_headline(run, size.columns), *_sentences(run, losses, size.columns), *notes]
    ranks = rank_table(run, paces, losses, size.columns)
    about = [*_about(run, paces, size.columns)]
    slow = losses[0].ranks if losses else ()
    shown = next(
        (pace for pace in paces if pace.rank in slow and pace.stages), paces[0]
    )  # the lowest if no rank is slow
    stages, events = [*_stages(run, shown, size.columns)], [*_events(run, paces, size.columns)]
    free = None if size.rows is None else max(0, size.rows - len(top) - bool(footer))
    stacks = [*_stacks(run, size, free)]
    table = _Block(ranks, 6, counted="ranks")
    if stacks or run.state == "hangs":
        blocks = [_Block(stacks, len(stacks)), table, _Block(about, 3), _Block(events, 3)]
    else:
        blocks = [_Block(about, 2), table, _Block(stages, 5), _Block(events, 4)]
    return _filled([*top, *_fitted([block for block in blocks if block.lines], free)], footer, size)


def waiting(place: str, size: TerminalSize, footer: str = "") -> list[Line]:
    size = replace(size, columns=max(LEAST_COLUMNS, size.columns))
    text = f"no run yet in {clean(place, 200)}; waiting. A run writes perf_callbacks/rank<k>.jsonl."
    return _filled(_wrapped(text, size.columns, "strong"), footer, size)


def _filled(lines: list[Line], footer: str, size: TerminalSize) -> list[Line]:
    bottom = [styled(footer, "dim")] if footer else []
    if size.rows is not None:
        lines = lines[: max(0, size.rows - len(bottom))]
        bottom = [()] * (size.rows - len(lines) - len(bottom)) + bottom
    return [cut(line, size.columns) for line in (*lines, *bottom)]


class _Block(NamedTuple):
    """Lines that belong together."""

    lines: Sequence[Line]
    least: int
    """Each block gets so many lines before any gets more."""
    counted: str = ""
    """Noun for the lines, such as "ranks", with which the frame says how many are left out."""

    def first(self, number: int) -> Sequence[Line]:
        """The last line may say how many lines are left out."""
        if number >= len(self.lines) or not self.counted:
            return self.lines[:number]
        left_out = len(self.lines) - number + 1
        return [*self.lines[: number - 1], styled(f"  and {left_out:,} {self.counted} more", "dim")]


def _fitted(blocks: Sequence[_Block], rows: int | None) -> Iterator[Line]:
    """An empty line before each block. If rows are few, earlier blocks get their lines first."""
    most = [len(block.lines) for block in blocks]
    if rows is None:
        most = [
            min(number, MOST_RANKS) if block.counted else number for number, block in zip(most, blocks, strict=True)
        ]
    free = sum(most) + len(blocks) if rows is None else rows
    given = [0] * len(blocks)
    for wishes in ([block.least for block in blocks], most):
        for place, wish in enumerate(wishes):
            gap = 0 if given[place] else 1
            addition = min(wish, most[place], given[place] + free - gap) - given[place]
            if addition > 0:
                given[place] += addition
                free -= addition + gap
    for block, number in zip(blocks, given, strict=True):
        if number:
            yield ()
            yield from block.first(number)


def _headline(run: RecordedRun, columns: int) -> Iterator[Line]:
    good = run.state in {"ended", "running"}
    style: Style = "good" if good else "bad"
    rest: Style = "" if good else "strong"
    first, *others = wrapped(f"{run_card.state(run)}.", width=columns)
    word = "no sign of life" if run.state == "silent" else first.split(" ")[0]
    yield StyledText(word, style), StyledText(first[len(word) :], rest)
    yield from [styled(line, rest) for line in others]


def _sentences(run: RecordedRun, losses: Sequence[RecentLoss], columns: int) -> Iterator[Line]:
    several = run.lead.run.world_size > 1
    for loss in losses[:MOST_SENTENCES] if run.state == "running" and several else ():
        yield from _wrapped(_loss(loss), columns, "warning")
    summary = run.summary
    verdict = run_card.verdict(run)
    about_hang = summary is not None and bool(summary.findings) and summary.findings[0].cause == STALL
    if verdict and not (about_hang and run.hang is not None):
        nothing = summary is not None and not summary.findings
        yield from _wrapped(verdict, columns, "good" if nothing else "strong")


def _loss(loss: RecentLoss) -> str:
    who = straggler_text.rank_names(loss.ranks)
    cause = clean(straggler_text.NAMES.get(loss.cause, loss.cause))
    verb = "are" if len(loss.ranks) > 1 else "is"
    where = f"in {loss.steps:,} steps" if loss.steps > 1 else "in one step"
    return f"{who[0].upper()}{who[1:]} {verb} slow: {cause}. The job lost {duration(loss.seconds)} {where}."


def _stacks(run: RecordedRun, size: TerminalSize, free: int | None) -> Iterator[Line]:
    """Of the ranks that hang. Long lines are cut at the left. If rows are few, drop outer lines."""
    shown = max(1, min(len(run.hanging), run_card.MOST_STACKS))
    frames = MOST_FRAMES
    if size.rows is not None and free is not None:
        room = min(max(STACK_SHARE * size.rows, shown * (LEAST_FRAMES + 1)), free - 1)
        frames = max(1, min(frames, int(room / shown) - 1))
    for line in run_card.stacks(run, frames):
        inner = line.startswith(" ")
        text = cut_left(f"  {line}", size.columns) if inner else f"  {line}"
        style: Style = "dim" if any(place in line for place in LIBRARIES) else ""
        yield styled(text, style if inner else "bad")


def _about(run: RecordedRun, paces: Sequence[RankPace], columns: int) -> Iterator[Line]:
    record, lead = run.lead.run, paces[0]
    for line in wrapped(joined(_figures(run, lead)), width=columns - INDENT):
        yield styled(f"  {line}")
    ranks = max(record.world_size, len(run.ranks))
    title, details = clean(run_title.title(record), 500), clean(run_title.details(record, ranks), 500)
    yield styled(f"  {title} · {details}", "dim")
    yield styled(f"  {clean(run.directory, 500)}, run {clean(record.run_id)}", "dim")


def _figures(run: RecordedRun, lead: RankPace) -> Iterator[str]:
    """Step time of recent steps and of the whole run, MFU, and tokens or samples per second."""
    age = None if lead.written is None else finite(run.now - run.lead.run.started_unix - lead.written)
    if not lead.steps:
        yield "no step on disk yet" if lead.step <= run.lead.run.step else "the last steps are not on disk"
    else:
        many = "the last step took" if lead.steps == 1 else f"the last {lead.steps:,} steps took"
        yield f"{many} {duration(lead.step_seconds)}{'' if lead.steps == 1 else ' each'}"
    if run.state == "running" and age is not None and age > LATE_SECONDS:
        yield f"no new step for {long_duration(age)}"
    summary = run.summary
    if summary is None:
        return
    if summary.step_time is not None:
        yield f"whole run {duration(finite(summary.step_time))}"
    mfu = finite(summary.mfu)
    if mfu is not None:
        yield f"MFU {'≥ ' if run.lower_bound else ''}{percent(mfu)}"
    per_rank = " per rank" if run.lead.run.world_size > 1 else ""
    for amount, unit in ((summary.included_tokens, "tokens/s"), (summary.included_samples, "samples/s")):
        if amount and summary.included_seconds > 0:
            yield f"{rate(amount / summary.included_seconds)} {unit}{per_rank}"
            return


def _stages(run: RecordedRun, lead: RankPace, columns: int) -> Iterator[Line]:
    whole = fsum(lead.stages.values())
    if not lead.steps or not whole:
        if run.lead.run.unstaged:
            yield styled(f"  stages are not timed: {clean(run.lead.run.unstaged, 200)}", "dim")
        return
    number = "step" if lead.steps == 1 else f"{lead.steps:,} steps"
    who = f"the last {number} of rank {lead.rank}" if run.lead.run.world_size > 1 else f"the last {number}"
    yield styled(f"  stages of {who}", "dim")
    narrow = columns < NARROW
    most = max(0, min(LONGEST_BAR, columns - (25 if narrow else 34)))
    for name, seconds in lead.stages.items():
        share = seconds / whole
        if share < WORTH_A_LINE:
            continue
        stage = clean(name.removesuffix("_time"))
        bar = ("█" * round(share * most)).ljust(most)
        took = "" if narrow else f"{duration(seconds):>9}"
        yield StyledText(f"  {stage:<14}"), StyledText(bar, "good"), StyledText(f"{took}{share:>9.1%}")


def _events(run: RecordedRun, paces: Sequence[RankPace], columns: int) -> Iterator[Line]:
    lead = paces[0].rank
    events = [
        (moment, event)
        for pace in paces
        for moment, event in pace.events
        if (pace.rank == lead or event.lane not in {"evaluation", "checkpoint"})
        and not (event.lane == "stall" and run.hang is not None)  # the table of ranks shows the stall
    ]
    if events:
        yield styled("  last events", "dim")
    for moment, event in nlargest(MOST_EVENTS, events, key=lambda event: event[0]):
        age = f"{long_duration(max(0.0, finite(run.now - moment) or 0.0))} ago"
        text = clean(event.text, 200)
        step = "" if columns < NARROW else f"  step {event.step:<8,}"
        yield StyledText(f"  {age:>12}{step}", "dim"), StyledText(f"  {text}")


def _wrapped(text: str, columns: int, style: Style) -> list[Line]:
    return [styled(line, style) for line in wrapped(text, width=columns)]
