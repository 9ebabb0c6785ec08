"""Our times of steps and stages, beside those between events that are recorded here."""

import itertools
import statistics
from collections.abc import Iterator
from typing import Any

from gpu.bench import Bench, Row, records, train
from gpu.models import Case, llama, small
from perf_callbacks.core.records import Run, Steps

COLUMNS = ("case", "what", "median of ours", "median difference", "worst difference", "of steps")

STAGES = ("data_time", "forward_time", "backward_time", "optimizer_time", "gc_time", "other_time")


class Stamped(Case):
    """A step that notes when forward and backward begin and end."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self.__dict__ |= case.__dict__
        self.stamps: list[dict[str, Any]] = []
        self._bench = bench

    def step(self, batch: dict[str, Any]) -> None:
        stamp = self._bench.stamp
        noted = {"forward": stamp()}
        loss = self.model(**batch).loss
        noted["backward"] = stamp()
        loss.backward()
        noted["optimizer"] = stamp()
        self.optimizer.step()
        noted["end"] = stamp()
        self.optimizer.zero_grad()
        self.stamps.append(noted)


def rows(bench: Bench) -> Iterator[Row]:
    for case in (small(bench), llama(bench)):
        yield from _compared(bench, Stamped(case, bench), bench.pick(60, 8))


def _compared(bench: Bench, case: Stamped, steps: int) -> Iterator[Row]:
    config = bench.config(gc="observe")  # on the host's clock a collection is taken out of its stage
    summary = train(bench, case, [case.batch] * steps, config).summary
    ours = _columns(config, steps)
    stamps = case.stamps
    truth = {
        "step_time": [bench.seconds(a["end"], b["end"]) for a, b in itertools.pairwise(stamps)],
        "forward_time": [bench.seconds(one["forward"], one["backward"]) for one in stamps[1:]],
        "backward_time": [bench.seconds(one["backward"], one["optimizer"]) for one in stamps[1:]],
    }
    for name, seconds in truth.items():
        pairs = [*zip(ours[name], seconds, strict=True)][1:]  # the counted step is the first of these
        yield case.name, name, *_differences(pairs)
    sums = [sum(one or 0 for one in parts) for parts in zip(*[ours[name] for name in STAGES], strict=True)]
    yield case.name, "sum of stages, and step_time", *_differences([*zip(sums, ours["step_time"], strict=True)])
    yield (
        case.name,
        f"lost steps, of the {records(config, Run)[0].timeline}'s clock",
        str(summary.lost_steps),
        *["—"] * 3,
    )


def _columns(config: Any, steps: int) -> dict[str, list[Any]]:
    """Of all steps but the first one, which nobody knows the beginning of."""
    blocks = records(config, Steps)
    columns = {
        name: [one for block in blocks for one in getattr(block, name) or [None] * len(block.step)]
        for name in ("step_time", *STAGES)
    }
    if len(columns["step_time"]) != steps:
        raise ValueError(f"the journal has {len(columns['step_time'])} steps of {steps}")
    return {name: column[1:] for name, column in columns.items()}


def _differences(pairs: list[tuple[float | None, float]]) -> Row:
    known = [(ours, truth) for ours, truth in pairs if ours is not None]
    apart = [ours - truth for ours, truth in known]
    middle, worst = statistics.median(apart), max(apart, key=abs)
    shown = statistics.median([ours for ours, _ in known])
    return (
        f"{shown * 1e3:.4f} ms",
        f"{middle * 1e6:+.2f} us ({middle / shown:+.4%})",
        f"{worst * 1e6:+.2f} us ({max((abs(ours / truth - 1) for ours, truth in known if truth), default=0):.4%})",
        str(len(known)),
    )
