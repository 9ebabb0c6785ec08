"""Rules about accelerators and their settings: where they must be silent. `test_wordings.py` is where they speak."""

from dataclasses import replace

import pytest
from advised import PLAIN, WORK, found, machine, summary, used
from profiled_cases import READS
from rows import each_row

from perf_callbacks.advice.facts import Facts
from perf_callbacks.flops.peaks.peak_rates import lookup
from perf_callbacks.kernel.process.device_use import DeviceUse
from perf_callbacks.kernel.records.summary_parts import FlopsSummary
from perf_callbacks.memory.device_readings import DeviceReadings

CUDA = machine(accelerator="cuda")
STAGES = ("data", "forward", "backward", "optimizer", "other")
RATED = {"flops": FlopsSummary(hardware_flops=100, seconds=1.0, peak_flops_per_second=400.0)}


def clocks(*mhz, reason="heat, by the driver", **known):
    """Readings of a device of at most 2000 MHz, of which those below have this reason."""
    readings = DeviceReadings()
    for clock in mhz:
        reasons = (reason,) if clock < 2000 else ()
        use = {"utilization": 1.0, "max_sm_mhz": 2000, "throttled_by": reasons} | known
        readings.add(1, DeviceUse(sm_mhz=clock, **use))
    return Facts(readings=readings)


HALF = (2000,) * 5 + (1200,) * 5
LIMITS = {"reason": "power cap", "limit_watts": 500.0}


def test_a_device_that_waits_for_data_is_not_idle_for_small_batches():
    facts = Facts(memory=used(*[0.25] * 6), work=replace(PLAIN, compiled=True))
    assert found("host", facts, summary(data=1.0), CUDA).share == pytest.approx(0.25)


def test_the_share_of_a_low_clock_is_its_loss_in_all_readings():
    assert found("throttle", clocks(*HALF), summary(), CUDA).share == pytest.approx(0.5 * 0.4)


def test_an_idle_device_loses_nothing_by_a_low_clock():
    assert found("throttle", clocks(*HALF, utilization=0.25), summary(), CUDA).share == pytest.approx(0.5 * 0.4 / 4)


def test_a_lowered_limit_has_a_share_and_the_limit_of_the_board_has_none():
    assert found(
        "throttle", clocks(*HALF, **LIMITS, default_limit_watts=700.0), summary(), CUDA
    ).share == pytest.approx(0.2)
    assert found("throttle", clocks(*[1100] * 10, **LIMITS, default_limit_watts=500.0), summary(), CUDA).share is None


def test_the_cause_that_costs_most_is_named():
    readings = clocks(*HALF, reason="power brake").readings
    for mhz in (1000,) * 6:
        readings.add(1, DeviceUse(sm_mhz=mhz, max_sm_mhz=2000, throttled_by=("heat, by the hardware",)))
    assert found("throttle", Facts(readings=readings), summary(), CUDA).evidence.startswith("Heat ")


WORK_OF_GPT2 = replace(PLAIN, by_dtype={"float32": 7_006 * 10**9})
SINGLE = Facts(work=WORK_OF_GPT2, half="bf16", peaks=lookup("NVIDIA H200"), widths=dict.fromkeys(STAGES, 0.05))
"""GPT-2 small, batches of 8 x 1,024 tokens, on an H200: 177 ms per step in float32, and 63.6 ms in bfloat16."""


def of_gpt2(forward, backward):
    stages = {"data": 0.0007, "forward": forward, "backward": backward, "optimizer": 0.0037, "other": 0.0024}
    return replace(summary(**stages), flops=FlopsSummary(devices=1))


def test_the_gain_of_bf16_on_an_h200_is_between_the_ends_of_the_promise():
    finding = found("precision", SINGLE, of_gpt2(0.0577, 0.112), CUDA)
    assert finding.low < 1 - 63.6 / 177 < finding.share


def test_tf32_is_a_verdict_where_products_take_most_of_a_step():
    finding = found("precision", replace(SINGLE, tf32_possible=True), of_gpt2(0.0577, 0.112), CUDA)
    assert 0.3 < finding.low < 1 / 3 < 3 / 4 < finding.share < 0.8  # by hand, see `_faster_products`


def test_a_faster_format_is_no_finding_where_the_device_waits_for_the_host():
    host_bound = replace(SINGLE, tf32_possible=True, work=replace(PLAIN, by_dtype={"float32": 10**9}))
    assert found("precision", host_bound, of_gpt2(0.0577, 0.112), CUDA) is None


def sized(*products):
    """Counted work of one step in bfloat16."""
    products = tuple([(f"aten::{name}", shapes, "bfloat16", flops) for name, shapes, flops in products])
    return replace(WORK, by_phase={}, by_dtype={"bfloat16": 100}, products=products)


ODD = sized(("mm", "[8192, 4096] x [4096, 10922]", 60), ("mm", "[8192, 4096] x [4096, 4096]", 40))
EVEN = sized(("bmm", "[3, 8192, 4096] x [3, 4096, 11008]", 60))
TWO_WAVES = ("mm", "[13952, 4096] x [4096, 256]", 60)
WAVES = Facts(tensor_cores=True, work=sized(TWO_WAVES), multiprocessors=108)
BF16 = Facts(half="bf16", work=PLAIN)
SLOW = replace(summary(), **RATED)
WORKED = replace(summary(), flops=replace(RATED["flops"], peak_flops_per_second=200.0))
PACKAGES = replace(PLAIN, reads={"/env/site-packages/torchmetrics/a.py:9": 8})
SILENT = {
    "throttled on a CPU": ("throttle", clocks(*HALF), summary(), machine()),
    "no readings": ("throttle", Facts(), summary(), CUDA),
    "clocks that were hardly read": ("throttle", clocks(*[1200] * 5), summary(), CUDA),
    "clocks that were low twice": ("throttle", clocks(*[2000] * 20, 1200, 1200), summary(), CUDA),
    "clocks that were low before times are known": ("throttle", clocks(*HALF), None, CUDA),
    "a clock that is hardly lower": ("throttle", clocks(*[1990] * 10), summary(), CUDA),
    "a board at its limit": ("throttle", clocks(*[1300] * 10, **LIMITS, default_limit_watts=500.0), summary(), CUDA),
    "a board at an unknown limit": ("throttle", clocks(*[1300] * 10, reason="power cap"), summary(), CUDA),
    "a limit above usual": ("throttle", clocks(*[1300] * 10, **LIMITS, default_limit_watts=400.0), summary(), CUDA),
    "reasons that are nobody's fault": ("throttle", clocks(*HALF, reason="sync boost"), summary(), CUDA),
    "an idle device": ("throttle", clocks(*HALF, utilization=0.0), summary(), CUDA),
    "deterministic on a CPU": ("precision", Facts(deterministic=True), None, machine()),
    "half in use": ("precision", Facts(work=ODD, half="bf16"), summary(), CUDA),
    "no fast format": ("precision", Facts(work=PLAIN), summary(), CUDA),
    "no count": ("precision", Facts(half="bf16"), summary(), CUDA),
    "uncached on a CPU": ("memory", Facts(uncached="PYTORCH_NO_CUDA_MEMORY_CACHING"), None, machine()),
    "cached": ("memory", Facts(expandable="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), summary(), CUDA),
    "compiled": ("compile", Facts(half="bf16", work=replace(PLAIN, compiled=True)), SLOW, CUDA),
    "busy without a compiler": ("compile", BF16, WORKED, CUDA),
    "busy but for the loader": ("compile", BF16, replace(summary(data=1.0), **RATED), CUDA),
    "no peak": ("compile", BF16, summary(), CUDA),
    "no fast 16-bit products": ("compile", Facts(work=PLAIN), SLOW, CUDA),
    "reads on a CPU": ("sync", Facts(work=replace(PLAIN, reads=READS)), summary(), machine()),
    "reads of packages": ("sync", Facts(work=PACKAGES), summary(), CUDA),
    "nan filter on a CPU": ("sync", Facts(nan_filter=True), summary(), machine()),
    "no nan filter": ("sync", Facts(), summary(), CUDA),
    "one reduction": ("sync", Facts(ddp=True, work=replace(PLAIN, reductions=1)), summary(), CUDA),
    "sums that are not DDP's": ("sync", Facts(work=replace(PLAIN, reductions=4)), summary(), CUDA),
    "batch that fills the device": ("host", Facts(memory=used(*[0.95] * 6)), summary(), CUDA),
    "use that was hardly read": ("host", Facts(memory=used(*[0.5] * 5)), summary(), CUDA),
    "use that nobody tells": ("host", Facts(memory=used()), summary(), CUDA),
    "use of a GPU that trains nothing": ("host", Facts(memory=used(*[0.5] * 6)), summary(), machine()),
    "idle while it waits for data": ("host", Facts(memory=used(*[0.5] * 6)), summary(data=1.0), CUDA),
    "sizes that are right": ("shape", Facts(work=EVEN, tensor_cores=True), summary(), CUDA),
    "sizes that do not matter": ("shape", Facts(work=ODD), summary(), CUDA),
    "sizes that are unknown": ("shape", Facts(tensor_cores=True), summary(), CUDA),
    "a full wave": ("shape", replace(WAVES, multiprocessors=109), summary(), CUDA),
    "waves of an unknown device": ("shape", replace(WAVES, multiprocessors=None), summary(), CUDA),
    "waves that do not matter": ("shape", replace(WAVES, tensor_cores=False), summary(), CUDA),
    "waves of unknown sizes": ("shape", replace(WAVES, work=None), summary(), CUDA),
    "rows that are no samples": ("shape", replace(WAVES, weights={(13952, 4096): 1}), summary(), CUDA),
    "full waves": ("shape", replace(WAVES, work=sized(("mm", "[13824, 4096] x [4096, 256]", 60))), summary(), CUDA),
    "a small part": (
        "shape", replace(WAVES, work=sized(TWO_WAVES, ("mm", "[64, 64] x [64, 64]", 600))), summary(), CUDA,
    ),
}  # fmt: skip


@each_row("case", SILENT)
def test_a_rule_is_silent(case):
    cause, facts, of, on = SILENT[case]
    assert found(cause, facts, of, on) is None
