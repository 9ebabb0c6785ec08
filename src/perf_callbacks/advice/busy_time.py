"""Rules about the busy time in a profile, such as element-wise operations, copies and collectives."""

import re

from perf_callbacks.advice import model, waits
from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.advice.profiled_steps import ProfiledSteps, profiled
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.profile_record import Profile, ProfiledCopy
from perf_callbacks.kernel.records.shares import MAJORITY, NOTABLE
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.profiles.kernel_classes import COMMUNICATION, ELEMENTWISE

FUSIBLE = 0.15
"""Least share of the run that element-wise operations and casts take if fusing is advised."""

LAYOUT = "layout"
WITHIN = frozenset({LAYOUT, "device to device"})
"""Copies that stay in the memory of the host or of a device."""

TRANSFERS = {
    "host to device": (
        " to the device",
        "copying the next batch on a stream of its own while the device computes, or images in uint8",
    ),
    "device to host": (" from the device", "keeping values on the device, or copying them rarely"),
}

FEW, MANY = 3, 20
"""Collectives per step: at most `FEW` hide little communication, and at least `MANY` may take long to start."""

SHORT_SECONDS = 200e-6
"""A collective that takes less on average spends most of its time on its start."""

BUCKETS, LARGE_BUCKET_MB = 8, 100
"""Number of gradient buckets with which DDP hides much communication, and size of a large one."""

GRADIENT_MB = 4e-6


@timed
def fusing(facts: Facts, measured: Measured) -> Finding | None:
    """Advise torch.compile, which fuses element-wise operations and casts on a device.

    Savings of the rules `attention` and `recompute` are subtracted, so that none counts twice. On a CPU, compilation
    saved little or nothing: see `docs/verdict.md`.
    """
    steps = profiled(facts, measured)
    if steps is None or steps.on_cpu or facts.compiled:
        return None
    seconds = fusible_seconds(steps.profile)
    others = [rule(facts, measured) for rule in (model.attention, model.recompute)]
    within = measured.share(measured.stage("forward") + measured.stage("backward"))
    share = min(steps.share(seconds), within) - sum([other.share or 0.0 for other in others if other is not None])
    if share < FUSIBLE:
        return None
    evidence = f"Element-wise operations and casts took {steps.part(seconds)}, and nothing is compiled"
    return finding("compile", share, evidence, model.compiled(facts))


def fusible_seconds(profile: Profile) -> float:
    """With casts, which a profile lists as copies."""
    casts = [copy.seconds for copy in profile.copies if copy.kind not in WITHIN and copy.kind not in TRANSFERS]
    return profile.class_seconds.get(ELEMENTWISE, 0.0) + sum(casts)


@timed
def copies(facts: Facts, measured: Measured) -> Finding | None:
    steps = profiled(facts, measured)
    if steps is None:
        return None
    by_operation: dict[str, list[ProfiledCopy]] = {}
    for copy in steps.profile.copies:
        if copy.kind in WITHIN:
            by_operation.setdefault(copy.operation, []).append(copy)
    worst = max(by_operation.values(), key=_seconds, default=[])
    remedy = "views or operations in place instead of copies"
    if worst and worst[0].kind == LAYOUT:
        remedy = "views, or the order of dimensions that the next operation takes (convolutions: torch.channels_last)"
    return _copying(steps, worst, "", remedy)


@timed
def transfers(facts: Facts, measured: Measured) -> Finding | None:
    steps = profiled(facts, measured)
    if steps is None or steps.on_cpu:
        return None
    by_kind = {kind: [copy for copy in steps.profile.copies if copy.kind == kind] for kind in TRANSFERS}
    kind = max(by_kind, key=lambda direction: _seconds(by_kind[direction]))
    return _copying(steps, by_kind[kind], *TRANSFERS[kind])


@timed
def collectives(facts: Facts, measured: Measured) -> Finding | None:
    """Time in which only collectives run, except waits for slow ranks and for uneven work."""
    steps = profiled(facts, measured)
    if steps is None:
        return None
    exposed = steps.profile.exposed_communication_seconds
    operations = [operation for operation in steps.profile.operations if operation.kind == COMMUNICATION]
    calls = max([operation.calls for operation in operations], default=0)  # of the most frequent collective
    number = calls / steps.number
    saved, remedy = _overlapping(facts, steps, number)
    share = saved * (steps.share(exposed) - _lost_to_ranks(measured))
    if share < NOTABLE:
        return None
    evidence = f"Collectives and their waits for other ranks took {steps.part(exposed)} without computation beside them"
    evidence += f": {number:,.0f} per step" if number else ""
    return finding("communication", share, evidence, remedy)


def _copying(steps: ProfiledSteps, copies: list[ProfiledCopy], direction: str, remedy: str) -> Finding | None:
    seconds = _seconds(copies)
    share = steps.share(seconds)
    if share < NOTABLE:
        return None
    calls = sum([copy.calls for copy in copies]) / steps.number
    evidence = f"Copies{direction} took {steps.part(seconds)}: {printable(copies[0].operation)}, {calls:,.0f} per step"
    line = printable(copies[0].line) if copies[0].line else None
    evidence += f", mostly in {line}" if line else ""
    return finding("copy", share, evidence, remedy, line=line)


def _seconds(copies: list[ProfiledCopy]) -> float:
    return sum([copy.seconds for copy in copies])


def _lost_to_ranks(measured: Measured) -> float:
    lost = measured.summary.stragglers
    if lost is None or not lost.seconds:
        return 0.0
    uneven = (lost.uneven_batches_seconds or 0.0) + (lost.uneven_stages_seconds or 0.0)
    part = (sum(lost.seconds_by_cause.values()) + uneven) / lost.seconds
    return part * measured.steps_seconds / measured.seconds


def _overlapping(facts: Facts, steps: ProfiledSteps, number: float) -> tuple[float, str]:
    """Return the largest part of the exposed communication that the remedy may save, and the remedy.

    Only computation that runs without communication can hide more communication.
    """
    profile, work = steps.profile, facts.work
    exposed, running = profile.exposed_communication_seconds, profile.communication_seconds
    free = min(1.0, max(0.0, profile.busy_seconds - running) / exposed) if exposed > 0 else 0.0
    short = number >= MANY and running / steps.number / number < SHORT_SECONDS
    names = " ".join([operation.name for operation in profile.operations if operation.kind == COMMUNICATION])
    if facts.ddp and work is not None and work.reductions > 1:
        return 1 - 1 / work.reductions, waits.no_sync(facts)
    if facts.ddp:
        return _in_buckets(facts, free, few=number <= FEW, short=short)
    remedies = "async_op=True, and computation that needs no result before work.wait()", "fewer or smaller collectives"
    if re.search("all_?gather|reduce_?scatter", names, re.IGNORECASE):
        sharded = "reshard_after_forward=False in FSDP, if memory suffices"
        remedies = f"prefetching in FSDP, or {sharded}", sharded
    elif short:
        return 1.0, "one collective for many tensors, in a buffer that holds them all"
    return (free, remedies[0]) if free >= MAJORITY else (1.0, remedies[1])


def _in_buckets(facts: Facts, free: float, *, few: bool, short: bool) -> tuple[float, str]:
    gradients_mb = facts.tensors * facts.elements * GRADIENT_MB
    if few and free >= MAJORITY and gradients_mb > 1:
        return free, _bucket_size(facts, max(1, round(gradients_mb / BUCKETS))) + ", so that DDP reduces earlier"
    if short:
        return 1.0, _bucket_size(facts, LARGE_BUCKET_MB)
    accumulation = "gradient accumulation" + " with model.no_sync()" * (facts.integration == "loop")
    return 1.0, f"{accumulation}, or bf16_compress_hook of DDP"


def _bucket_size(facts: Facts, megabytes: int) -> str:
    return (
        facts.option("ddp_bucket_cap_mb", megabytes)
        or facts.option("bucket_cap_mb", megabytes)
        or f"DistributedDataParallel(bucket_cap_mb={megabytes})"
    )
