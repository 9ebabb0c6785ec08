"""Text and JSON values of a scaling curve. The text has a verdict, the part that grows most, a table and bars."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from perf_callbacks.kernel.plural import plural
from perf_callbacks.report import machine_load
from perf_callbacks.report.layout import INDENT, aligned, wrapped
from perf_callbacks.report.units import DASH, duration, percent, rate
from perf_callbacks.scaling.curve import Curve, PartGrowth, Point

GOOD = 0.8
"""Least efficiency that counts as good scaling."""

BAR = 40

WORDS = {"communication_time": "collectives", "gc_time": "garbage collection", "data_time": "waiting for data"}
"""A part without words is named after its stage."""

REASONS = {
    "backward_time": "In the backward, ranks also wait for each other and sum up gradients.",
    "communication_time": "These are collectives outside of the backward: ranks wait for each other or exchange data.",
    "data_time": "Ranks on one machine share its disk and its CPUs.",
}

ONE_RUN = (
    "One run per number of devices: the intervals cover what varies within the runs, not what differs between runs. "
    "For that, give several runs of each."
)


def render(curve: Curve, columns: int) -> str:
    lines = [line for text in _sentences(curve) for line in wrapped(text, width=columns)]
    heads = ("devices", "runs", f"{curve.unit}/s", "per device", "efficiency, 95 %", "grows most")
    rows = [_row(point) for point in curve.points]
    lines += [f"  {line}" for line in aligned([heads, *rows], right=range(4))]
    lines += ["efficiency", *_bars(curve)]
    loads = [(point.devices, machine_load.described(point.loads)) for point in curve.points]
    if any(load for _, load in loads):
        lines.append("load of the machine")
        lines += [
            f"  {line}"
            for devices, load in loads
            for line in wrapped(f"{_devices(devices)}: {load or 'unknown'}", width=columns - INDENT)
        ]
    return "\n".join(lines)


def _sentences(curve: Curve) -> Iterator[str]:
    last = curve.points[-1]
    low, high = last.interval or (last.efficiency, last.efficiency)
    verdict = "Good" if low >= GOOD else "Not good" if high < GOOD else "Undecided, make more runs"
    base = " and ".join(map(_devices, curve.baseline))
    yield (
        f"{verdict}: {_devices(last.devices)} do the work of {last.efficiency * last.devices:.3g} in the baseline "
        f"({base}). The efficiency is {last.efficiency:.3f}; {GOOD:g} or more is good."
    )
    if not curve.weak:
        amounts = ", ".join(f"{_amount(point)} on {_devices(point.devices)}" for point in curve.points)
        yield (
            f"The batch per device differs (strong scaling): {amounts}, in {curve.unit} per step. So {curve.unit} per "
            f"second are compared, and times of parts are those of {curve.baseline_per_step:g} {curve.unit}."
        )
    grown = last.grown
    if grown is not None:
        yield from _why(last, grown)
    elif last.efficiency < 1 and last.growth:
        yield "It is undecided which part of the step grows most."
    elif last.efficiency < 1:
        yield "It is unknown which part grows, because the stages of a run were not timed."
    left_out = sum([point.left_out for point in curve.points])
    if left_out:
        yield f"{'One run was' if left_out == 1 else f'{left_out} runs were'} left out, because the machine was busy."
    if max([point.runs for point in curve.points]) == 1:
        yield ONE_RUN


def _amount(point: Point) -> str:
    least, most = (f"{end:g}" for end in point.per_step_ends)
    return least if least == most else f"{least} to {most}"


def _why(point: Point, grown: PartGrowth) -> Iterator[str]:
    name, ends = named(grown.part), f"{duration(grown.low)} to {duration(grown.high)}"
    share = "" if grown.share is None else f", {percent(grown.share)} of the lost time"
    yield (
        f"{name.capitalize()} grows most: with {_devices(point.devices)}, a step spends {duration(grown.seconds)} more "
        f"on it ({ends}){share}. {REASONS.get(grown.part, '')}".rstrip()
    )
    if grown.excess >= grown.seconds / 2 and point.devices > 1:
        rank, often = point.slowest
        yield (
            f"Ranks are uneven: on the slowest rank of a step, {name} takes {duration(grown.excess)} longer than on "
            f"the mean rank. Rank {rank} is the slowest in {percent(often)} of the steps."
        )


def _row(point: Point) -> tuple[str, ...]:
    ends = "" if point.interval is None else f" ({point.interval[0]:.3f}-{point.interval[1]:.3f})"
    grown, cell = point.grown, DASH
    if grown is not None:
        share = "" if grown.share is None else f" {grown.share:.0%}"
        cell = f"{grown.part.removesuffix('_time')}{share}"
    numbers = f"{point.devices:,}", f"{point.runs:,}", rate(point.per_second), rate(point.per_device)
    return (*numbers, f"{point.efficiency:.3f}{ends}", cell)


def _bars(curve: Curve) -> list[str]:
    bars = []
    for point in curve.points:
        bar = ("#" * round(BAR * min(1.0, point.efficiency))).ljust(BAR, ".")
        mark = round(BAR * GOOD)
        bars.append((f"{point.devices:,}", f"{bar[:mark]}|{bar[mark:]}", f"{point.efficiency:.3f}"))
    return [f"  {line}" for line in aligned(bars, right={0})]


def values(curve: Curve) -> dict[str, Any]:
    """For JSON. Times are in seconds, and shares are from 0 to 1."""
    return {
        "unit": curve.unit,
        "scaling": "weak" if curve.weak else "strong",
        "baseline": {"devices": curve.baseline, "per_step": curve.baseline_per_step},
        "points": [
            {
                **{name: value for name, value in asdict(point).items() if name not in {"growth", "loads", "slowest"}},
                "grows_most": None if point.grown is None else point.grown.part,
                "growth": [asdict(part) for part in point.growth],
                "slowest_rank": dict(zip(("rank", "share_of_steps"), point.slowest, strict=True)),
                "loads": [load._asdict() for load in point.loads],
            }
            for point in curve.points
        ],
    }


def named(part: str) -> str:
    """Name a part for readers.

    >>> named("backward_time"), named("communication_time")
    ('backward', 'collectives')
    """
    return WORDS.get(part, part.removesuffix("_time"))


def _devices(number: int) -> str:
    return plural(number, "device")
