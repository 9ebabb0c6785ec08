"""Rules about a device's idle time in a profile, which is due to loading, to kernel launches or to waits."""

import re

from perf_callbacks.advice import model, waits
from perf_callbacks.advice.facts import Facts, Measured, finding, timed
from perf_callbacks.advice.profiled_steps import profiled, unknown_loading
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.shares import LARGE, NOTABLE
from perf_callbacks.kernel.settings.config import printable
from perf_callbacks.profiles.idle import DATA_CAUSE, HOST, SYNC

LONGEST_PACE = 100e-6
"""Most seconds per kernel of a host that only launches kernels. A launch takes some 5 to 50 us."""

KEEPING = "keeping values on the device until they are logged"

REMEDIES = (
    (
        r"^aten::(to|_to_copy|copy_|cpu)$|Memcpy",
        "pin_memory=True in the DataLoader, and tensor.to(device, non_blocking=True)",
    ),
    (r"Synchronize", "removing torch.{device}.synchronize() from the step"),
    (
        r"::nonzero|masked_select|unique|aten::index|repeat_interleave",
        "operations whose result has a fixed shape, such as torch.where(condition, a, b)",
    ),
)
"""By names of operations that wait for the device."""


@timed
def loading(facts: Facts, measured: Measured) -> Finding | None:
    """The wait for a DataLoader that the program did not pass to the callback."""
    steps, seconds = profiled(facts, measured), unknown_loading(facts, measured)
    share = measured.with_cpu(measured.share(seconds))
    if steps is None or share < NOTABLE:
        return None
    evidence = f"Waiting for the DataLoader took {steps.part(steps.profile.idle_seconds[DATA_CAUSE])}"
    passed = "accelerator.prepare(loader)" if facts.integration == "accelerate" else "measure(..., loader=loader)"
    remedy = f"num_workers in the DataLoader; {passed} says how many"
    return finding("data", share, evidence, remedy)


@timed
def launches(facts: Facts, measured: Measured) -> Finding | None:
    """The device waits until the host launches kernels.

    If samples show much slow code, only the rules of `slow_code` report the waits.
    """
    steps = profiled(facts, measured)
    slow = [code for code in facts.slow_code.values() if code.looks / code.of_all >= LARGE]
    if steps is None or steps.on_cpu or slow:
        return None
    profile, (least, most) = steps.profile, steps.idle(HOST)
    if least < LARGE:
        return None
    idled = f"The device idled for {steps.part(profile.idle_seconds[HOST])} because the CPU"
    pace, mean = [seconds / profile.kernels for seconds in (profile.span_seconds, profile.busy_seconds)]
    if pace > LONGEST_PACE:
        evidence = f"{idled} did other work than launching kernels: one kernel per {1e6 * pace:,.0f} us"
        remedy = "moving this work out of the training thread: the trace of the profile shows it in Perfetto"
        return finding("host", most, evidence, remedy)
    number = f"{profile.kernels / steps.number:,.0f} per step, of {1e6 * mean:,.0f} us each"
    remedy = "larger micro-batches"
    if not facts.compiled:
        remedy += f", or {model.without_launches(facts)}"
    return finding("host", most, f"{idled} was still launching kernels: {number}", remedy)


@timed
def waiting(facts: Facts, measured: Measured) -> Finding | None:
    """The operation in which the host waits longest for the device, which idles after each wait."""
    steps = profiled(facts, measured)
    if steps is None or steps.on_cpu:
        return None
    least, most = steps.idle(SYNC)
    if least < NOTABLE:
        return None
    place = next(iter(steps.profile.sync_seconds), "")
    evidence = f"The device idled for {steps.part(steps.profile.idle_seconds[SYNC])} after the CPU had waited for it"
    evidence += f", mostly in {printable(place)}" if place else ""
    remedies = [remedy for pattern, remedy in REMEDIES if re.search(pattern, place)]
    if remedies:
        return finding("sync", most, evidence, remedies[0].format(device=facts.device_type))
    if facts.nan_filter and place == "aten::is_nonzero":
        return finding("sync", most, evidence, waits.NO_NAN_FILTER)
    line, _ = waits.most_frequent_read(facts) or (None, 0)
    evidence += f", for example at {line}" if line else ""
    return finding("sync", most, evidence, KEEPING, line=line)
