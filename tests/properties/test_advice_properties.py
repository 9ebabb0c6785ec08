"""No rule of advice fails, however extreme the facts, and each share is a share."""

import math
from dataclasses import replace

from advised import PLAIN, collective, copy, profile
from hypothesis import HealthCheck, given, settings, strategies as st
from summaries import a_summary_of

from perf_callbacks.advice import table
from perf_callbacks.advice.compilations import Compilations
from perf_callbacks.advice.facts import Drift, Facts, Measured, SlowCode
from perf_callbacks.advice.step_blocks import STAGES
from perf_callbacks.flops.peaks.peak_rates import lookup
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.kernel.records.summary_parts import FlopsSummary, GcSummary, StallSummary, StragglerSummary
from perf_callbacks.memory.use import Leak, MemoryUse
from perf_callbacks.report import cards

SECONDS = st.sampled_from([0.0, 1e-9, 0.01, 1.0, 1e6])
SHARES = st.sampled_from([0.0, 1e-12, 0.3, 1.0])
NUMBERS = st.sampled_from([0, 1, 7, 10**12])
LINES = st.sampled_from([None, "train.py:3 `score`", "train.py:9 `<module>`"])
INTEGRATIONS = st.sampled_from(["loop", "accelerate", "transformers", "lightning", "elsewhere"])
CODE = st.sampled_from([SlowCode("train.py:3 `score`", looks, of, 20) for looks, of in ((3, 3), (3, 9), (20, 20))])
STAGE_SECONDS = st.dictionaries(st.sampled_from([f"{stage}_time" for stage in STAGES]), SECONDS)
FLOPS = st.one_of(NUMBERS, st.none())


@st.composite
def works(draw):
    phases = st.dictionaries(st.sampled_from(["forward", "backward", "recompute", "optimizer"]), NUMBERS)
    products = st.sampled_from([(), PLAIN.products, tuple((*row[:3], 0) for row in PLAIN.products)])
    return replace(
        PLAIN,
        hardware_flops=draw(NUMBERS),
        by_phase=draw(phases),
        by_dtype=draw(st.dictionaries(st.sampled_from(["float32", "tfloat32", "bfloat16"]), NUMBERS)),
        products=draw(products),
        reads=draw(st.sampled_from([{}, {"train.py:3": 1}])),
        values_read=draw(st.sampled_from([{}, {"train.py:3": 1}])),
        reductions=draw(st.integers(0, 3)),
        compiled=draw(st.booleans()),
    )


@st.composite
def profiles(draw):
    timeline, busy = draw(st.sampled_from(["device", "cpu"])), draw(st.sampled_from([1e-9, 0.5, 1.0]))
    idle = {cause: draw(SHARES) * (1 - busy) for cause in ("data", "host", "sync")}
    communication = draw(st.sampled_from([0.0, busy]))
    return replace(
        profile(timeline=timeline, copies=(copy("layout", busy),), operations=(collective(seconds=communication),)),
        busy_seconds=3 * busy,
        idle_seconds=draw(st.sampled_from([{}, idle])),
        communication_seconds=communication,
        exposed_communication_seconds=communication,
        steps=draw(st.sampled_from([None, 1, 3])),
        kernels=draw(st.sampled_from([1, 20_000])),
    )


@st.composite
def memories(draw):
    use = MemoryUse()
    use.retries, use.gpu_readings = draw(st.integers(0, 2)), 7
    use.parts = draw(st.sampled_from([None, Memory(step=2, device="cuda", activations_gb=0.0, peak_gb=0.0)]))
    use.leak = draw(st.sampled_from([None, Leak(gb_per_hour=1e-9, gb_per_step=None, before_gb=0.0, after_gb=1e-9)]))
    return use


FACTS = st.builds(
    Facts,
    integration=INTEGRATIONS,
    accelerator=st.sampled_from([None, "cuda"]),
    cpus=st.sampled_from([None, 1, 2, 256]),
    memory_available=st.sampled_from([None, 0, 10**12]),
    workers=st.sampled_from([None, 0, 1, 300]),
    batch_bytes=FLOPS,
    batch_lengths=st.integers(0, 2),
    calm_share=st.one_of(st.none(), SHARES),
    burst_seconds=SECONDS,
    epochs=NUMBERS,
    epoch_wait_seconds=SECONDS,
    epoch_wait_in_rows=SECONDS,
    data_line=LINES,
    host_line=LINES,
    first_seconds=st.dictionaries(st.sampled_from(STAGES), SECONDS),
    slow_code=st.dictionaries(st.sampled_from(["forward", "backward", "optimizer"]), CODE),
    collect_seconds=SECONDS,
    attention=st.sampled_from([None, "eager"]),
    sdpa=st.booleans(),
    optimizer=st.sampled_from([None, "AdamW", "Lion"]),
    elements=st.sampled_from([0.0, 1.0, 1e12]),
    tensors=NUMBERS,
    threads=st.sampled_from([1, 300]),
    log_every=st.sampled_from([None, 1]),
    ddp=st.booleans(),
    tensor_cores=st.booleans(),
    multiprocessors=st.sampled_from([None, 1, 132]),
    half=st.sampled_from([None, "bf16", "fp16"]),
    tf32=st.booleans(),
    tf32_possible=st.booleans(),
    peaks=st.sampled_from([None, lookup("NVIDIA H200")]),
    memory=st.one_of(st.none(), memories()),
    free_cpus=st.sampled_from([None, 0.0, 256.0]),
    left_cpus=st.sampled_from([None, 0.0, 256.0]),
    idle_share=st.one_of(st.none(), SHARES),
    starved_share=st.one_of(st.none(), SHARES),
    update_part=st.one_of(st.none(), SHARES),
    compilations=st.sampled_from([None, Compilations(0, 0.0, 0, ""), Compilations(2, 1e6, 1, "size")]),
    drift=st.sampled_from([None, Drift(1e-9, 1e6, 1.0, "other"), Drift(1.0, 1.1, 0.0, "data")]),
    widths=st.sampled_from([{}, dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 1e6)]),
    work=st.one_of(st.none(), works()),
    profiles=st.one_of(st.just(()), profiles().map(lambda one: (one,))),
)


@st.composite
def summaries(draw):
    stages, included = draw(STAGE_SECONDS), draw(st.sampled_from([0, 1, 5, 10**9]))
    tokens = draw(FLOPS)
    names = ["startup", "first_step", "flop_counting", "evaluation", "checkpoint", "other"]
    lost = {"steps": 5, "seconds": draw(SECONDS), "slowdown": draw(st.sampled_from([None, 1.0]))}
    steal = {"seconds_by_cause": {"steal": draw(SECONDS)}, "costliest": ((1, "steal", draw(SECONDS), 3),)}
    parts = st.sampled_from([{}, {"uneven_batches_seconds": 0.0, "uneven_stages_seconds": 1e6}, steal])
    return replace(
        a_summary_of(
            run_id="a1",
            attempt=1,
            step=included,
            steps=included + draw(st.integers(0, 2)),
            included_steps=included,
            included_seconds=draw(st.sampled_from([1e-9, sum(stages.values()) or 1.0])),
            stage_seconds=stages,
            other_seconds=draw(st.dictionaries(st.sampled_from(["generation", "rewards"]), SECONDS)),
            wall_seconds=draw(st.dictionaries(st.sampled_from(names), SECONDS)) | {"steps": draw(SECONDS)},
            span_counts=draw(st.dictionaries(st.sampled_from(["evaluation", "checkpoint"]), st.integers(0, 3))),
            samples=None,
            tokens=None,
            included_samples=None,
            included_tokens=tokens,
            included_useful_tokens=draw(st.sampled_from([None, 0, tokens])),
            total_samples=None,
            total_tokens=None,
        ),
        flops=draw(st.sampled_from([None, FlopsSummary(), FlopsSummary(devices=0), FlopsSummary(hardware_flops=0)])),
        gc=draw(st.sampled_from([None, GcSummary(collections=(0, 0, 0), seconds=1e6, longest=1e6)])),
        stalls=draw(st.sampled_from([None, StallSummary(count=2, seconds=1e6, under_way=True)])),
        stragglers=draw(st.one_of(st.none(), parts.map(lambda part: StragglerSummary(**lost | part)))),
    )


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(FACTS, st.one_of(st.none(), summaries()))
def test_rules_hold_for_extreme_facts(facts, summary):
    measured = None if summary is None else Measured(summary, facts)
    for rule in table.RULES:
        finding = rule(facts, measured)
        if finding is not None and finding.share is not None:
            assert 0 <= finding.share <= 1, rule
            assert finding.low is None or not math.isnan(finding.low), rule
    if summary is not None:
        assert "a rule of the advice failed" not in cards.verdict(
            replace(summary, findings=table.findings(facts, summary))
        )
