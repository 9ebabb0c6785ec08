"""MFU and HFU, beside the truth: FLOPs by hand over the time between two events on the stream."""

from collections.abc import Callable, Iterator

from gpu.bench import DENSE_BF16, Bench, Row, percent, records, train
from gpu.models import Case, llama, stack
from perf_callbacks.core.records import Flops

FIRST = 2
"""The first step and the counted one are in no figure of ours; both clocks begin with the end of the second."""

COLUMNS = (
    "case",
    "counted / by hand",
    "step, events",
    "step, ours",
    "difference",
    "step, nobody measures",
    "MFU, truth",
    "MFU, ours",
    "difference",
    "HFU, truth",
    "HFU, ours",
    "difference",
)


def rows(bench: Bench) -> Iterator[Row]:
    makers: tuple[Callable[[], Case], ...] = (
        lambda: stack(bench, *bench.pick((16, 8192, 8192), (3, 64, 64))),
        lambda: llama(bench),
        lambda: llama(bench, "early"),
    )
    for make in makers:
        yield _row(bench, make())


def _row(bench: Bench, case: Case) -> Row:
    steps = bench.pick(40, 6)
    alone = _alone(bench, case, steps)
    stamps = {}

    def after(number: int, _: object) -> None:
        if number in {FIRST, steps}:
            stamps[number] = bench.stamp()

    config = bench.config()
    summary = train(bench, case, [case.batch] * steps, config, after).summary
    truth = bench.seconds(stamps[FIRST], stamps[steps]) / (steps - FIRST)
    counted = records(config, Flops)[0]
    mfu, hfu = (flops / truth / DENSE_BF16 for flops in (case.model_flops, case.hardware_flops))
    found = f"{counted.model_flops / case.model_flops:.6f}, {counted.hardware_flops / case.hardware_flops:.6f}"
    ours = (summary.step_time, summary.mfu, summary.hfu)
    return (
        case.name,
        found + "".join(f", {dict(odd)}" for odd in (counted.uncounted, counted.errors) if odd),
        *(f"{truth * 1e3:.5g} ms", _shown(ours[0], 1e3, " ms"), percent(ours[0], truth), f"{alone * 1e3:.5g} ms"),
        *(f"{mfu * 100:.5g} %", _shown(ours[1], 100, " %"), percent(ours[1], mfu)),
        *(f"{hfu * 100:.5g} %", _shown(ours[2], 100, " %"), percent(ours[2], hfu)),
    )


def _alone(bench: Bench, case: Case, steps: int) -> float:
    for _ in range(FIRST):
        case.step(case.batch)
    start = bench.stamp()
    for _ in range(steps - FIRST):
        case.step(case.batch)
    end = bench.stamp()
    bench.synchronize()
    return bench.seconds(start, end) / (steps - FIRST)


def _shown(value: float | None, scale: float, unit: str) -> str:
    return "—" if value is None else f"{value * scale:.5g}{unit}"
