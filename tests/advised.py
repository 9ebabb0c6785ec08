"""A machine, a count, a summary and a profile to give advice on."""

from dataclasses import replace
from types import SimpleNamespace

from summaries import a_summary_of

from perf_callbacks.advice import table
from perf_callbacks.advice.facts import Facts
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.profile_record import Profile, ProfiledCopy, ProfiledOperation
from perf_callbacks.memory.use import MemoryUse

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
    usual = {"accelerator": None, "cpus": 8, "memory_available": 40e9, "local_ranks": 1}
    return SimpleNamespace(**usual | changes)


def summary(*, steps=100, gc=None, spans=None, counts=None, startup=5.0, useful=1, **stages):
    """A fit whose measured steps make up all of its time after startup, unless it has spans."""
    times = {f"{name}_time": steps * seconds for name, seconds in (STAGES | stages).items()}
    seconds = sum(times.values())
    return a_summary_of(
        run_id="a1", attempt=1, step=steps, steps=steps, included_steps=steps, included_seconds=seconds,
        stage_seconds=times, wall_seconds={"startup": startup, "steps": seconds, **(spans or {})},
        span_counts=counts or {}, samples=1, tokens=1, included_samples=1, included_tokens=1,
        included_useful_tokens=useful, total_samples=1, total_tokens=1, gc_longest=0.1,
        **{"gc_collections": (0, 0, 0), "gc_seconds": 0.0} | (gc or {}),
    )  # fmt: skip


def findings(on, facts, of=None):
    """All findings about a fit on a machine."""
    return table.findings(replace(facts, **vars(on)), of)


def found(cause, facts=None, of=None, on=None):
    """The finding of one cause; None where no rule speaks of it."""
    every = findings(on or machine(), facts or Facts(workers=0, work=PLAIN), of)
    return next((finding for finding in every if finding.cause == cause), None)


def used(*utilization, **known):
    """The use of memory with what is known of it, and of a GPU as NVML gave it."""
    use = MemoryUse()
    for name, value in known.items():
        setattr(use, name, value)
    for reading in utilization:
        use.saw_gpu(reading)
    return use


def profile(*, step=1.0, timeline="device", steps=3, kernels=20_000, idle=None, classes=None, sync=None, **more):
    """A profile of steps of a second each, unless told otherwise; all times are per step, and the rest is products."""
    idle, classes = idle or {}, classes or {}
    busy = step - sum(idle.values())
    classes = {"contraction": busy - sum(classes.values())} | classes
    copies = [replace(one, seconds=steps * one.seconds, calls=steps * one.calls) for one in more.pop("copies", ())]
    operations = [
        replace(one, seconds=steps * one.seconds, calls=steps * one.calls) for one in more.pop("operations", ())
    ]
    communication = classes.get("communication", 0.0)
    return Profile(
        timeline=timeline,
        steps=steps,
        first_step=20,
        span_seconds=steps * step,
        busy_seconds=steps * busy,
        idle_seconds={cause: steps * seconds for cause, seconds in idle.items()},
        class_seconds={kind: steps * seconds for kind, seconds in classes.items()},
        communication_seconds=steps * more.pop("running", communication),
        exposed_communication_seconds=steps * communication,
        kernels=steps * kernels,
        sync_seconds={place: steps * seconds for place, seconds in (sync or {}).items()},
        copies=tuple(copies),
        operations=tuple(operations),
    )


def copy(kind, seconds, operation="aten::contiguous", line=None, calls=4):
    """Copies of a profile, with calls and seconds per step."""
    return ProfiledCopy(kind=kind, operation=operation, line=line, calls=calls, seconds=seconds)


def collective(name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", calls=5, seconds=0.2):
    """A collective of a profile, with calls and seconds per step."""
    return ProfiledOperation(name=name, kind="communication", calls=calls, seconds=seconds)
