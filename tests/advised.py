"""A machine, a count and a summary to give advice on."""

from dataclasses import replace
from types import SimpleNamespace

from summaries import a_summary_of

from perf_callbacks.advice import table
from perf_callbacks.advice.facts import Facts
from perf_callbacks.kernel.records.fit_records import Flops

STAGES = {"data": 0.0, "forward": 0.3, "backward": 0.6, "optimizer": 0.1, "gc": 0.0, "other": 0.0}
WORK = Flops(
    step=2,
    model_flops=900,
    hardware_flops=1000,
    by_phase={"forward": 300, "backward": 600, "recompute": 100},
    by_dtype={"float32": 900},
    source="counted",
    coverage=1.0,
    uncounted={},
    lower_bound=False,
    products=(("aten::mm", "[4, 4] x [4, 4]", "float32", 750), ("aten::bmm", "[1, 4, 4] x [1, 4, 4]", "float32", 250)),
)
PLAIN = replace(WORK, by_phase={"forward": 300, "backward": 600})


def machine(**changes):
    usual = {"accelerator": None, "cpus": 8, "memory_available": 40e9, "local_world_size": 1}
    return SimpleNamespace(**usual | changes)


def summary(*, steps=100, gc=None, spans=None, counts=None, startup=5.0, **stages):
    """A fit whose measured steps make up all of its time after startup, unless it has spans."""
    times = {f"{name}_time": steps * seconds for name, seconds in (STAGES | stages).items()}
    seconds = sum(times.values())
    return a_summary_of(
        run_id="a1",
        attempt=1,
        step=steps,
        steps=steps,
        included_steps=steps,
        included_seconds=seconds,
        stage_seconds=times,
        wall_seconds={"startup": startup, "steps": seconds, **(spans or {})},
        span_counts=counts or {},
        samples=1,
        tokens=1,
        included_samples=1,
        included_tokens=1,
        included_useful_tokens=1,
        total_samples=1,
        total_tokens=1,
        gc_longest=0.1,
        **{"gc_collections": (0, 0, 0), "gc_seconds": 0.0} | (gc or {}),
    )


def found(cause, facts=None, of=None, on=None):
    """The finding of one cause; None where no rule speaks of it."""
    every = table.findings(on or machine(), facts or Facts(workers=0, work=PLAIN), of)
    return next((one for one in every if one.cause == cause), None)
