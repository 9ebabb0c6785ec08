"""Rules from profiles: their shares, where they are silent, and which guesses of other rules they replace."""

from dataclasses import replace

import pytest
from advised import PLAIN, copy, findings, found, machine, profile, summary, used
from profiled_cases import BETWEEN, CPU, CUDA, DDP, FUSIBLE, LATE, READS, RUN, SLOW_CODE, WAITING, profiled, reduced
from rows import each_row

from perf_callbacks.advice.compilations import Compilations
from perf_callbacks.advice.facts import Facts
from perf_callbacks.kernel.records.fit_records import ENOUGH_STEPS
from perf_callbacks.kernel.records.summary_parts import FlopsSummary

HEALTHY = {
    "idle": {"host": 0.02, "data": 0.01, "sync": 0.01, "device": 0.02},
    "classes": {"elementwise": 0.1, "copy": 0.05, "normalization": 0.06, "communication": 0.02, "optimizer": 0.05},
    "running": 0.25,
    "sync": {"aten::item": 0.01},
    "copies": [copy("layout", 0.02), copy("float32 to bfloat16", 0.02, "aten::to"), copy("host to device", 0.01)],
}


@pytest.mark.parametrize("timeline", ["cpu", "device"])
def test_a_healthy_profile_is_no_finding(timeline):
    on = CPU if timeline == "cpu" else CUDA
    assert findings(on, profiled(DDP, **HEALTHY, timeline=timeline), RUN) == ()


SILENT = {
    "few steps": (profiled(**LATE), summary(steps=ENOUGH_STEPS - 1), CUDA),
    "no run yet": (profiled(**LATE), None, CUDA),
    "a profile of the CPU, on a GPU": (profiled(**FUSIBLE, timeline="cpu"), RUN, CUDA),
    "a profile of a GPU, on a CPU": (profiled(**FUSIBLE), RUN, CPU),
    "no marked steps": (replace(profiled(**FUSIBLE), profiles=(replace(profile(**FUSIBLE), steps=None),)), RUN, CUDA),
    "nothing but idle time": (profiled(idle={"unknown": 1.0}), RUN, CUDA),
    "Python between operations of a CPU": (profiled(**LATE, timeline="cpu"), RUN, CPU),
    "idle time by the profiler alone": (profiled(step=1.6, idle={"host": 0.6}), RUN, CUDA),
    "a device that has work in usual steps": (profiled(step=1.2, idle={"host": 0.25}), RUN, CUDA),
    "gaps between launched kernels": (profiled(idle={"device": 0.5}), RUN, CUDA),
    "compiled": (profiled(Facts(work=replace(PLAIN, compiled=True)), **FUSIBLE), RUN, CUDA),
    "compiled since the fit began": (profiled(Facts(compilations=Compilations(1, 0.0, 0, "")), **FUSIBLE), RUN, CUDA),
    "element-wise operations of a CPU": (profiled(**FUSIBLE, timeline="cpu"), RUN, CPU),
    "many small copies": (profiled(copies=[copy("layout", 0.02, f"aten::{one}") for one in range(5)]), RUN, CUDA),
    "transfers of a CPU": (profiled(timeline="cpu", copies=[copy("host to device", 0.3)]), RUN, CPU),
    "communication beside computation": (reduced(exposed=0.01, running=0.5), RUN, CUDA),
}  # fmt: skip


@each_row("case", SILENT)
def test_no_finding(case):
    facts, of, on = SILENT[case]
    assert findings(on, facts, of) == ()


def test_idle_time_after_a_wait_and_for_launches_are_different_times():
    facts = profiled(step=1.1, idle={"host": 0.35, "sync": 0.2}, sync={"aten::item": 0.2})
    host, sync = findings(CUDA, facts, RUN)
    assert (host.cause, host.share) == ("host", pytest.approx(0.25))
    assert (sync.cause, sync.share) == ("sync", pytest.approx(0.2))


def test_time_outside_of_forward_backward_and_optimizer_belongs_to_other_rules():
    (only,) = findings(CUDA, profiled(step=1.5, idle={"host": 0.5}), BETWEEN)
    assert only.evidence.startswith("Python code outside")
    both = findings(CUDA, profiled(step=1.5, idle={"host": 0.9}), BETWEEN)
    assert [one.share for one in both] == pytest.approx([1.4 * 0.5 / 1.5, 0.4 / 1.5])


def test_casts_are_fused_and_counted_once():
    facts = profiled(
        classes={"elementwise": 0.1, "copy": 0.3},
        copies=[copy("float32 to bfloat16", 0.2, "aten::to"), copy("layout", 0.1)],
    )
    compiling, copying = findings(CUDA, facts, RUN)
    assert (compiling.cause, compiling.share) == ("compile", pytest.approx(0.3))
    assert (copying.cause, copying.share) == ("copy", pytest.approx(0.1))


def test_a_cpu_that_is_missing_comes_before_copies():
    facts = profiled(Facts(starved_share=0.2), timeline="cpu", copies=[copy("layout", 0.25)])
    cpu, copying = findings(machine(), facts, RUN)
    assert (cpu.cause, copying.cause, copying.share) == ("cpu", "copy", pytest.approx(0.25 * 0.8))


def test_operations_of_fused_attention_are_not_fused_again():
    facts = Facts(work=PLAIN, attention="eager", sdpa=True)
    attention = found("attention", facts, RUN, CUDA).share
    both = findings(CUDA, profiled(facts, classes={"elementwise": 0.6}), RUN)
    assert {one.cause: one.share for one in both if one.share} == {
        "attention": attention,
        "compile": pytest.approx(0.6 - attention),
    }


def test_a_profile_replaces_guesses_about_a_device():
    slow = replace(RUN, flops=FlopsSummary(hardware_flops=100, seconds=1.0, peak_flops_per_second=400.0))
    work = replace(PLAIN, by_dtype={"bfloat16": 100}, reads=READS, reductions=4)
    facts = Facts(memory=used(*[0.5] * 6), half="bf16", nan_filter=True, ddp=True, work=work)
    assert {one.cause for one in findings(CUDA, facts, slow)} == {"host", "compile", "sync"}
    assert findings(CUDA, profiled(facts), slow) == ()


def test_slow_code_costs_at_most_the_idle_time_of_the_device():
    code = {"forward": SLOW_CODE, "backward": SLOW_CODE}
    assert found("host", Facts(slow_code=code), RUN, CUDA).share is None
    every = findings(CUDA, profiled(Facts(slow_code=code), **LATE), RUN)
    assert [one.share for one in every] == pytest.approx([0.2, 0.2])
    assert findings(CUDA, profiled(Facts(slow_code=code)), RUN) == ()


def test_a_loader_that_the_callback_does_not_know_is_no_python_code():
    facts = profiled(step=1.5, idle={"data": 0.4, "host": 0.1})
    data, host = findings(CUDA, facts, BETWEEN)
    assert (data.cause, data.share) == ("data", pytest.approx(0.4 / 1.5))
    assert (host.cause, host.share) == ("host", pytest.approx(1.4 * 0.1 / 1.5))
    assert found("data", facts, summary(data=0.01, other=0.5), CUDA) is None


def test_waits_for_slow_ranks_are_no_slow_network():
    assert found("communication", reduced(exposed=0.2), WAITING, CUDA) is None
