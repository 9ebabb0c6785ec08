"""Each rule: where it speaks, of which cause and share, and where it must not. `wordings.txt` has its sentences."""

from dataclasses import replace

import pytest
from advised import PLAIN, STAGES, WORK, findings, found, machine, summary
from rows import each_row

from perf_callbacks.advice import step_blocks
from perf_callbacks.advice.compilations import Compilations
from perf_callbacks.advice.facts import Drift, Facts, SlowCode
from perf_callbacks.advice.loading import HAND_OVER_SECONDS, HIGH, LOW, faster
from perf_callbacks.kernel.records.fit_records import ENOUGH_STEPS
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.memory.use import MemoryUse

CUDA = machine(accelerator="cuda")
EXACT = dict.fromkeys(step_blocks.STAGES, 0.0)


@pytest.mark.parametrize(("share", "causes"), [(0.06, ["drift"]), (0.02, ["host", "drift"])])
def test_growth_of_other_work_is_drift_and_not_host_work_too(share, causes):
    facts = Facts(drift=Drift(0.1, 0.12, share, "other"), host_line="train.py:9 `log`")
    every = findings(machine(), facts, summary(other=0.1))
    assert [one.cause for one in every] == causes
    assert "at train.py:9 `log`" in next(one.evidence for one in every if one.cause == "drift")


def test_workers_are_not_blamed_for_what_other_programs_took():
    texts = [
        found("cpu", Facts(workers=2, left_cpus=left, starved_share=0.3), summary(), machine(cpus=2)).evidence
        for left in (None, 2.0, 1.0)
    ]
    assert ["workers of the loader share" in text for text in texts] == [True, True, False]
    assert "other programs or threads" in texts[-1]


def test_nothing_is_wrong_with_a_run_that_only_computes():
    assert findings(machine(), Facts(workers=0, work=PLAIN, sdpa=True, attention="sdpa"), summary()) == ()


def test_a_run_of_a_few_steps_tells_nothing():
    few = summary(steps=ENOUGH_STEPS - 1, data=5.0, other=5.0, optimizer=5.0)
    assert findings(machine(), Facts(workers=0, work=WORK), few) == ()


@pytest.mark.verdict_after_ten_seconds
def test_a_run_of_less_than_ten_seconds_tells_nothing():
    quick = {name: 0.09 * seconds for name, seconds in (STAGES | {"data": 0.5, "other": 0.5}).items()}
    assert findings(machine(), Facts(workers=0, work=WORK), summary(steps=50, **quick)) == ()
    assert findings(machine(), Facts(workers=0, work=WORK), summary(steps=100, **quick))


def test_the_lack_of_a_cpu_comes_before_what_it_makes_longer():
    facts = Facts(workers=2, starved_share=0.2)
    cpu, host, data = findings(machine(), facts, summary(data=1.0, other=2.0))
    assert [one.cause for one in (cpu, host, data)] == ["cpu", "host", "data"]
    assert (cpu.share, host.share) == (0.2, pytest.approx(1.4 * 0.5 * (1 - 0.2 * 4 / 3)))  # three of four seconds work
    assert "took 50% of the run" in host.evidence
    data, cpu = findings(machine(), facts, summary(data=4.0))
    assert [one.cause for one in (data, cpu)] == ["data", "cpu"], "a loader is slow with a CPU too"


def test_without_workers_the_training_thread_loads_and_needs_a_cpu():
    with_workers, without = [
        found("data", Facts(workers=workers, starved_share=0.3), summary(data=1.0)).share for workers in (1, 0)
    ]
    assert without == pytest.approx(0.7 * found("data", Facts(workers=0), summary(data=1.0)).share)
    assert with_workers > without


def test_a_thread_that_sleeps_has_hardly_less_to_win():
    """The thread needed a CPU for a few percent, and lacked it for as long."""
    facts = Facts(starved_share=0.06)
    host, cpu = findings(machine(), facts, summary(other=4.0))
    assert (host.cause, host.share, cpu.cause) == ("host", pytest.approx((1 + 0.8 * 0.94) / 2), "cpu")


def test_a_little_time_without_a_cpu_is_no_finding_and_a_device_is_not_slowed_by_it():
    assert found("cpu", Facts(starved_share=0.04), summary()) is None
    of = {"workers": 2, "threads": 2, "starved_share": 0.3}
    assert found("cpu", Facts(**of), summary(), machine(cpus=4)).remedy.startswith("more CPUs"), "a CPU for each"
    on_device = machine(cpus=2, accelerator="cuda")
    assert found("cpu", Facts(**of), summary(), on_device).remedy == "num_workers=1", "the device computes"
    on = machine(accelerator="cuda")
    assert found("host", Facts(starved_share=0.2), summary(other=1.0), on).share == 1.4 * 0.5
    assert found("cpu", Facts(starved_share=0.2), summary(other=1.0), on).share is None


def test_threads_beyond_cpus_are_advised_against_once():
    every = findings(machine(cpus=2), Facts(threads=8, starved_share=0.3), summary())
    assert [one.remedy for one in every] == ["OMP_NUM_THREADS=2"]


def test_a_single_worker_on_a_single_cpu_is_not_too_many():
    finding = found("cpu", Facts(workers=1, starved_share=0.3), summary(), machine(cpus=1))
    assert "num_workers" not in finding.remedy


@pytest.mark.parametrize("stage", ["communication", "backward"])
def test_steps_that_wait_longer_for_other_ranks_are_no_drift_of_this_rank(stage):
    drifts = Drift(first=0.04, last=0.06, share=0.2, stage=stage)
    assert found("drift", Facts(drift=drifts, ddp=True), summary()) is None
    assert found("drift", Facts(drift=drifts._replace(stage="other"), starved_share=0.2), summary()) is None


@pytest.mark.parametrize(
    ("reason", "named", "promise"),
    [("tensor 'x' size mismatch", "dynamic", (0.24, 0.48)), ("training == True", "TORCH_LOGS", (None, 0.3))],
)
def test_the_reason_of_repeated_compilations_decides_on_the_remedy(reason, named, promise):
    finding = found("compile", Facts(compilations=Compilations(4, 30.0, 3, reason)), summary())
    assert (finding.low, finding.share) == pytest.approx(promise)
    assert (named in finding.remedy, reason in finding.evidence) == (True, True)


def test_a_forward_of_slow_code_alone_has_no_recomputation_to_save():
    facts = Facts(workers=0, work=WORK, slow_code={"forward": SlowCode("train.py:31 `loss_of`", 9, 9, 30)})
    assert [one.cause for one in findings(machine(), facts, summary())] == ["host"]


def test_a_wait_beside_reads_of_values_has_its_own_line():
    work = replace(PLAIN, values_read={"/home/a/train.py:7": 1}, reads={"/home/a/train.py:7": 1})
    waits = SlowCode("train.py:8 `<module>`", 20, 20, 40)
    (wait,) = findings(machine(), Facts(work=work, host_wait=waits), summary(other=1.0))
    assert (wait.cause, wait.line, wait.share) == ("host", "train.py:8 `<module>`", 1.4 * 0.5)
    half = replace(Facts(work=work), host_wait=waits._replace(looks=10))
    assert {one.cause: one.share for one in findings(machine(), half, summary(other=1.0))} == {
        "host": pytest.approx(1.4 * 0.25),
        "sync": pytest.approx(2.4 * 0.25),
    }


def test_a_read_that_waits_for_the_device_is_no_wait_of_its_own():
    work = replace(PLAIN, values_read={"/home/a/train.py:7": 1}, reads={"/home/a/train.py:7": 1})
    facts = Facts(work=work, host_wait=SlowCode("train.py:7 `<module>`", 20, 20, 40))
    assert found("host", facts, summary(other=1.0), CUDA) is None
    assert found("sync", facts, summary(other=1.0), CUDA).share == pytest.approx(0.75)


@pytest.mark.parametrize("integration", ["transformers", "lightning"])
def test_the_work_of_a_trainer_is_nothing_that_a_user_can_change(integration):
    facts = Facts(integration=integration)
    assert found("host", facts, summary(other=1.0)) is None
    assert found("host", replace(facts, host_line="train.py:3 `score`"), summary(other=1.0)).share == 1.4 * 0.5


def test_a_share_that_varies_has_a_lower_end():
    finding = found("host", Facts(widths={"other": 0.25}), summary(other=1.0))
    assert (finding.share, finding.low) == (1.4 * 0.5, 0.75 * 0.375)
    assert found("host", Facts(), summary(other=1.0)).low is None, "too few steps"


def test_workers_are_advised_where_steps_wait_for_data():
    facts = Facts(workers=0, widths=EXACT | {"data": 0.1})
    finding = found("data", facts, summary(data=1.0))
    assert (finding.share, "num_workers=2" in finding.remedy) == (1.25 * 0.5, True)
    assert finding.low == pytest.approx(0.449 * 0.7 * 0.9)


def test_more_workers_are_advised_where_those_there_are_too_slow():
    finding = found("data", Facts(workers=2, widths=EXACT), summary(data=1.0))
    assert (finding.share, "num_workers=5" in finding.remedy) == (0.5, True)
    assert finding.low == pytest.approx(0.449 * 0.7)


BURSTS = Facts(workers=2, calm_share=0.8, burst_seconds=3.0, widths=EXACT)


@each_row(
    ("changes", "on", "remedy"),
    [
        ({}, {}, "DataLoader(num_workers=2, prefetch_factor=4)"),
        ({"burst_seconds": 12.0}, {}, "DataLoader(num_workers=2, prefetch_factor=10)"),
        ({"burst_seconds": 1e3}, {}, "DataLoader(num_workers=2, prefetch_factor=16)"),
        (
            {"options": {"dataloader_prefetch_factor": "TrainingArguments"}},
            {},
            "TrainingArguments(dataloader_prefetch_factor=4)",
        ),
        ({"batch_bytes": 10**9}, {"memory_available": 10.5e9}, "DataLoader(num_workers=2, prefetch_factor=3)"),
        ({"batch_bytes": 10**9}, {"memory_available": 9e9}, "samples that take equally long to load"),
        ({"calm_share": 0.5}, {}, "DataLoader(num_workers=5)"),  # the workers are too slow on average
        ({"calm_share": None}, {}, "DataLoader(num_workers=5)"),
    ],
)
def test_waits_in_bursts_need_batches_in_advance(changes, on, remedy):
    finding = found("data", replace(BURSTS, **changes), summary(data=1.0), machine(**on))
    assert (finding.share, finding.remedy) == (0.5, remedy)
    assert finding.low < finding.share


@each_row(
    ("available", "ranks", "taken", "workers", "said"),
    [
        (40e9, 1, 0.0, 4, None),
        (13e9, 1, 0.0, 3, "memory leaves room for 3 workers"),
        (26e9, 2, 0.0, 3, "memory leaves room for 3 workers"),
        (13e9, 1, 8.0, 1, "memory leaves room for 1 worker"),
        (1e9, 1, 0.0, 0, "memory leaves room for no workers"),
        (None, 1, 0.0, 4, None),
    ],
)
def test_host_memory_limits_workers(available, ranks, taken, workers, said):
    """A batch has a GB, and a worker holds two batches in advance and two in work."""
    use = MemoryUse()
    use.parts = Memory(step=2, device="cpu", weights_gb=1.0, peak_gb=1.0 + taken)
    facts = Facts(workers=0, batch_bytes=10**9, memory=use, free_cpus=8.0)
    on = machine(memory_available=available, local_ranks=ranks)
    finding = found("data", facts, summary(data=3.0), on)
    assert (f"num_workers={workers})" in finding.remedy) == (workers > 0)
    assert "workers" not in finding.evidence.partition(";")[2] if said is None else said in finding.evidence
    assert found("data", replace(facts, batch_bytes=None), summary(data=3.0), on).remedy == "DataLoader(num_workers=4)"


def test_the_hand_over_of_a_batch_by_workers_is_no_wait():
    assert found("data", Facts(workers=2), summary(data=0.1)) is None


def test_workers_beyond_the_cpus_are_not_advised():
    finding = found("data", Facts(workers=2), summary(data=1.0), machine(cpus=2))
    assert (finding.share, "num_workers" in finding.remedy) == (0.5, False)


def test_cpus_that_compute_all_the_time_leave_nothing_for_workers():
    finding = found("data", Facts(workers=0, threads=2), summary(data=0.25), machine(cpus=1))
    assert (finding.share, "num_workers" in finding.remedy) == (pytest.approx(0.2), False)


def test_on_an_accelerator_computing_takes_one_cpu():
    on = machine(accelerator="cuda", cpus=2)
    assert found("data", Facts(workers=0, threads=2), summary(data=1.0), on).share == 0.5


@each_row("load", [0.2, 0.9, 1.5, 4.0])
@each_row("launch", [0.01, 0.3])
@each_row("syncs", [True, False])
def test_on_a_device_workers_save_its_idle_time_at_most(load, launch, syncs):
    """A device computes for a second per step. The host loads, launches, and perhaps waits for the device."""
    step = load + max(1.0, launch) if syncs else max(load + launch, 1.0)
    finding = found("data", Facts(workers=0, widths=EXACT), summary(data=step - 1.0), CUDA)
    if finding is None:
        assert step - 1.0 < 0.02 * step
        return
    workers = int(finding.remedy.partition("num_workers=")[2].rstrip(")"))
    saved = 1 - max(1.0, launch + HAND_OVER_SECONDS, load / workers) / step
    assert finding.low <= saved <= finding.share + 1e-9


def test_a_wait_of_nothing_is_no_finding():
    assert found("data", of=summary(data=0.002)) is None


@each_row(
    ("facts", "share"),
    [
        ({}, 0.448 / 1.5),
        ({"idle_share": 0.0, "free_cpus": 1.0}, 0.448 / 1.5),
        ({"free_cpus": 0.25}, 0.2584 / 1.5),  # the others are used by other programs
        ({"free_cpus": 0.0, "idle_share": 0.5 / 1.5}, 0.498 / 1.5),  # the loader waits for a disk
        ({"free_cpus": 0.25, "idle_share": 0.1 / 1.5}, 0.3464 / 1.5),  # or computes for a part of the time
    ],
)
def test_the_promise_counts_cpus_that_are_free(facts, share):
    finding = found("data", Facts(workers=0, widths=EXACT, **facts), summary(data=0.5), machine(cpus=2))
    assert (finding.low, finding.share) == pytest.approx((LOW * share, min(HIGH * share, 1.25 / 3)))


def test_workers_are_not_advised_where_other_programs_use_the_cpus():
    finding = found("data", Facts(workers=0, free_cpus=0.0), summary(data=0.5), machine(cpus=2))
    assert (finding.share, "num_workers" in finding.remedy) == (pytest.approx(1 / 3), False)


@pytest.mark.parametrize(
    ("case", "seconds"),
    [((1, 1, 1, 8, 1), 1), ((4, 1, 2, 8, 1), 2), ((1, 1, 2, 2, 2), 1.5), ((8, 1, 16, 4, 1), 2.25)],
)
def test_the_slowest_of_computing_loading_and_the_cpus_sets_the_pace(case, seconds):
    assert faster(*case) == seconds


def test_python_work_between_the_stages():
    assert found("host", of=summary(other=1.0)).share == 1.4 * 0.5
    assert found("host", of=summary(other=0.002)) is None


def test_the_line_that_keeps_the_steps_busy_is_named():
    lines = {"host_line": "train.py:3 `score`", "data_line": "data.py:7 `parse`", "collect_line": "train.py:9 `main`"}
    gc = {"gc_seconds": 100.0, "gc_collections": (0, 0, 9)}
    facts = Facts(**lines, collect_seconds=60.0, workers=0)
    assert lines["host_line"] in found("host", facts, summary(other=1.0)).evidence
    assert lines["data_line"] in found("data", facts, summary(data=1.0)).evidence
    assert lines["collect_line"] in found("gc", facts, summary(gc=gc)).remedy


def test_the_line_that_waits_for_workers_is_not_the_one_that_is_slow():
    waiting = Facts(workers=1, data_line="train.py:3 `main`")
    assert waiting.data_line not in found("data", waiting, summary(data=1.0)).evidence


@pytest.mark.parametrize("facts", [{"work": replace(PLAIN, values_read={"/home/a/train.py:41": 2})}, {"log_every": 1}])
def test_values_that_are_read_and_logged_in_each_step(facts):
    logging = summary(other=1.0)
    assert found("sync", Facts(**facts), logging).share == (0.5 + 1) / 2
    assert found("host", Facts(**facts), logging) is None  # the same time is not told of twice


def test_values_that_are_read_for_nothing_much_are_no_finding():
    assert found("sync", Facts(log_every=1), summary(other=0.002)) is None
    assert found("sync", Facts(log_every=50), summary(other=1.0)) is None


def grpo(**parts):
    """Steps of two seconds, of which one is work of TRL's."""
    return replace(summary(other=1.0), other_seconds={name: 100 * seconds for name, seconds in parts.items()})


@pytest.mark.parametrize("part", ["generation", "rewards"])
def test_parts_of_other_are_findings_of_their_own(part):
    worst, rest = findings(machine(), Facts(), grpo(**{part: 0.8}))
    assert (worst.cause, worst.share) == ("host", 0.4)
    assert (rest.cause, rest.share) == ("host", pytest.approx(1.4 * 0.1))


def test_parts_of_other_are_no_logging():
    every = findings(machine(), Facts(log_every=1), grpo(generation=0.8))
    assert [(one.cause, one.share) for one in every] == [("host", 0.4), ("sync", pytest.approx(2.4 * 0.1))]


def test_parts_of_other_that_take_nothing_are_no_finding():
    (host,) = findings(machine(), Facts(), grpo(generation=0.002))
    assert host.share == pytest.approx(1.4 * 0.499)


def test_recomputation_is_worth_its_share_of_the_forward():
    finding = found("recompute", Facts(work=WORK, widths=EXACT), summary())
    assert (finding.low, finding.share) == pytest.approx((0.075, 0.165))
    whole = replace(WORK, by_phase=WORK.by_phase | {"recompute": 270})
    assert found("recompute", Facts(work=whole), summary()).share == pytest.approx(0.42), "at most 1.4 forwards"


def test_padding_is_worth_its_share_of_forward_and_backward():
    finding = found("padding", Facts(widths=EXACT), summary(useful=0.5))
    assert (finding.low, finding.share) == pytest.approx((0.18, 0.495))
    assert found("padding", Facts(), summary(useful=0.0, forward=90.0)).share < 1
    mostly_loading = summary(useful=0.5, data=4.0)
    assert found("padding", Facts(), mostly_loading).share == pytest.approx(0.495 / 5)


@pytest.mark.parametrize("useful", [None, 0.95, 1, 1.5])
def test_little_or_unknown_padding_is_no_finding(useful):
    assert found("padding", Facts(), summary(useful=useful)) is None


@pytest.mark.parametrize("work", [PLAIN, None])
def test_no_recomputation_is_no_finding(work):
    assert found("recompute", Facts(work=work), summary()) is None


def test_eager_attention_where_the_model_could_fuse_it():
    facts = Facts(work=PLAIN, attention="eager", sdpa=True, widths=EXACT)
    finding = found("attention", facts, summary())
    assert (finding.low, finding.share) == pytest.approx((0.5 * 0.25 * 0.9, 1.5 * 0.25 * 0.9))


@pytest.mark.parametrize(
    ("head", "accelerator", "factors"), [(32, None, (0.5, 1.5)), (64, None, (0.0, 0.6)), (64, "cuda", (0.5, 1.5))]
)
def test_fused_attention_of_wide_heads_may_save_nothing_on_a_cpu(head, accelerator, factors):
    facts = Facts(work=PLAIN, attention="eager", sdpa=True, widths=EXACT, head=head)
    plain = found("attention", replace(facts, head=None), summary()).share / 1.5
    every = findings(machine(accelerator=accelerator), facts, summary())
    finding = next(one for one in every if one.cause == "attention")
    assert (finding.low, finding.share) == pytest.approx((factors[0] * plain, factors[1] * plain))


@pytest.mark.parametrize("facts", [{"attention": "sdpa"}, {"sdpa": False}, {"work": None}])
def test_attention_that_is_fused_or_can_not_be_is_no_finding(facts):
    assert found("attention", Facts(**{"work": PLAIN, "attention": "eager", "sdpa": True} | facts), summary()) is None


def test_an_optimizer_that_goes_from_tensor_to_tensor():
    facts = Facts(optimizer="AdamW", tensors=1234, elements=64.0, update_part=0.8 / 1.1)
    assert found("optimizer", facts, summary(optimizer=1.1)).share == pytest.approx(1.7 * 0.75 * 0.8 / 2.0)
    larger = replace(facts, elements=1e6)
    assert found("optimizer", larger, summary(optimizer=1.1)).share == pytest.approx(1.7 * 0.6 * 0.8 / 2.0)


@pytest.mark.parametrize("facts", [{"fused": True}, {"optimizer": "Muon"}, {"optimizer": None}, {"update_part": None}])
def test_an_optimizer_that_can_not_be_fused_is_no_finding(facts):
    usual = {"optimizer": "AdamW", "update_part": 1.0}
    assert found("optimizer", Facts(**usual | facts), summary(optimizer=1.1)) is None


def test_an_accelerator_updates_many_tensors_at_once():
    assert (
        found(
            "optimizer",
            Facts(optimizer="AdamW", update_part=1.0),
            summary(optimizer=1.1),
            machine(accelerator="cuda"),
        )
        is None
    )


@pytest.mark.parametrize(
    ("setting", "asked", "scheduled", "promise"),
    [
        ("sync", 60.0, 0.0, ((0.375, 0.7), "gc.collect()")),
        ("observe", 60.0, 0.0, ((0.375, 0.7), "gc.collect()")),
        ("observe", 40.0, 0.0, ((None, 0.5), "PERF_CALLBACKS_GC")),
        ("sync", 60.0, 90.0, ((None, 0.5), "cycles")),
    ],
)
def test_garbage_is_collected_for_long(setting, asked, scheduled, promise):
    gc = {"gc_seconds": 100.0, "gc_scheduled_seconds": scheduled, "gc_collections": (7, 1, 2)}
    finding = found("gc", Facts(gc=setting, collect_seconds=asked), summary(gc=gc, forward=1.3))
    ends, named = promise
    assert ((finding.low, finding.share), named in finding.remedy) == (ends, True)


@each_row(
    ("made", "garbage", "named"),
    [
        (7_000_000, 17, "objects that are no longer used"),
        (12_000_000, 6_000_000, "objects that are no longer used"),
        (1_010_000_000, 1_000_000_000, "cycles"),
        (2_000_000_000, 1_000_000_000, "cycles"),  # parts of garbage that the collector doesn't count
        (60_000_000, 55_000_000, "cycles"),  # garbage that is slow to free, such as tensors
        (90_000, 100, "gc_interval"),
        (None, None, "cycles"),
    ],
)
def test_objects_that_stay_make_the_schedule_slow_as_garbage_does(made, garbage, named):
    gc = {"gc_seconds": 100.0, "gc_scheduled_seconds": 90.0, "gc_collections": (7, 1, 2)}
    of = summary(gc=gc, forward=1.3)
    of = replace(of, gc=replace(of.gc, scheduled_made=made, scheduled_garbage=garbage))
    finding = found("gc", Facts(gc="sync"), of)
    assert (finding.share, named in finding.remedy) == (0.5, True)
    assert "The callback's" in finding.evidence


def test_young_collections_before_the_schedule_are_nobodys_calls():
    gc = {"gc_seconds": 100.0, "gc_collections": (7, 1, 0)}
    assert found("gc", of=summary(gc=gc)) is None


def test_waits_for_workers_that_start_are_advised_once():
    most = replace(summary(data=1.0), steps=200)  # of which 100 are measured
    facts = replace(EPOCHS, epoch_wait_seconds=0.5, epoch_wait_in_rows=0.5)
    assert "persistent" in found("data", facts, most).remedy
    assert len([one for one in findings(machine(), facts, most) if one.cause == "data"]) == 1


@pytest.mark.parametrize("seconds", [None, 0.0, 0.5])
def test_a_little_garbage_is_no_finding(seconds):
    assert found("gc", of=summary(gc={"gc_seconds": seconds})) is None


@pytest.mark.parametrize(("kind", "most"), [("evaluation", 1.4), ("checkpoint", 1.6)])
def test_rarer_spans_are_worth_the_time_beyond_a_twentieth(kind, most):
    finding = found(kind, Facts(), summary(steps=90, spans={kind: 45.0}, counts={kind: 30}))
    saved = 45.0 * 0.9 / 135
    assert (finding.low, finding.share) == pytest.approx((0.75 * saved, most * saved))
    assert " 30 " in finding.remedy


@pytest.mark.parametrize(("seconds", "count"), [(4.0, 30), (45.0, 1), (0.0, 0)])
def test_a_rare_evaluation_is_no_finding(seconds, count):
    assert found("evaluation", of=summary(spans={"evaluation": seconds}, counts={"evaluation": count})) is None


def test_eager_attention_is_known_before_the_run():
    assert found("attention", Facts(attention="eager", sdpa=True)).share is None


@pytest.mark.parametrize(
    ("facts", "cause"),
    [({"blocking": "CUDA_LAUNCH_BLOCKING"}, "sync"), ({"anomalies": True}, "host"), ({"threads": 16}, "threads")],
)
def test_advice_that_needs_no_run(facts, cause):
    (finding,) = findings(machine(), Facts(**facts))
    assert (finding.cause, finding.share) == (cause, None)
    assert findings(machine(), Facts(threads=8)) == ()


@each_row(
    ("threads", "left", "advised"),
    [
        (8, 2.2, 2),
        (16, 2.2, 2),
        (16, 8.0, 8),
        (16, None, 8),
        (8, 0.1, 1),
        (2, 2.2, None),
        (8, 7.6, None),
        (8, None, None),
    ],
)
def test_threads_are_advised_for_the_cpus_that_other_programs_leave(threads, left, advised):
    finding = found("threads", Facts(threads=threads, left_cpus=left), summary())
    assert (finding and finding.remedy) == (advised and f"OMP_NUM_THREADS={advised}")
    starved = found("cpu", Facts(threads=threads, left_cpus=left, starved_share=0.3), summary())
    assert ("OMP_NUM_THREADS" in starved.remedy) == (advised is not None)


def test_other_programs_are_unknown_before_the_run():
    assert findings(machine(), Facts(threads=8, left_cpus=1.0)) == ()


def test_threads_without_a_cpu_come_first():
    every = findings(machine(), Facts(threads=16, workers=0), summary(data=1.0, other=0.5))
    assert [one.cause for one in every][:2] == ["threads", "data"]


def test_threads_of_the_host_hardly_matter_to_an_accelerator():
    assert findings(machine(accelerator="cuda"), Facts(threads=16)) == ()


EPOCHS = Facts(workers=2, work=PLAIN, epochs=10, epoch_wait_seconds=0.5, epoch_wait_in_rows=0.5)


def test_workers_that_are_started_for_each_epoch():
    (finding,) = findings(machine(), EPOCHS, summary(data=0.5))
    assert (finding.cause, finding.share) == ("data", pytest.approx(1.6 * 50 / 150))


def test_workers_that_are_started_promise_less_than_all_of_the_time():
    facts = replace(EPOCHS, epoch_wait_seconds=1.4, epoch_wait_in_rows=1.4)
    assert found("data", facts, summary(data=1.4)).share == pytest.approx((140 / 240 + 1) / 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"persistent": True},
        {"workers": 0},
        {"epochs": 0, "epoch_wait_seconds": 0.0, "epoch_wait_in_rows": 0.0},
        {"epoch_wait_seconds": 0.2},  # two workers that keep up take as long for a batch
    ],
)
def test_workers_that_need_not_persist(changes):
    every = findings(machine(), replace(EPOCHS, **changes), summary(data=0.5))
    assert all("persistent" not in one.remedy for one in every)


def test_the_wait_for_workers_that_start_is_no_reason_for_more_of_them():
    more = found("data", replace(EPOCHS, persistent=True, epochs=0, epoch_wait_in_rows=0.0), summary(data=0.5))
    assert "num_workers=4" in more.remedy
    assert "persistent" in found("data", EPOCHS, summary(data=0.5)).remedy


FEW = Facts(threads=1, free_cpus=6.8)


def test_more_threads_are_advised_where_most_cpus_are_idle():
    (finding,) = findings(machine(), FEW, summary())
    assert (finding.cause, finding.share, "OMP_NUM_THREADS=7" in finding.remedy) == ("host", None, True)


@each_row(
    ("facts", "of", "on"),
    [
        (replace(FEW, threads=4), summary(), machine()),  # half of the CPUs: hyperthreads, or workers
        (replace(FEW, free_cpus=3.0), summary(), machine()),  # workers and other programs use them
        (replace(FEW, free_cpus=None), summary(), machine()),
        (FEW, summary(data=2.0), machine()),  # operations are not what takes the time
        (FEW, summary(), machine(accelerator="cuda")),
        (FEW, summary(), machine(cpus=None)),
        (FEW, None, machine()),
    ],
)
def test_more_threads_are_not_advised(facts, of, on):
    assert all("threads" not in one.remedy.lower() for one in findings(on, facts, of))


def test_the_finding_that_could_win_most_comes_first():
    every = findings(
        machine(), Facts(workers=0, work=PLAIN, blocking="CUDA_LAUNCH_BLOCKING"), summary(data=1.0, other=3.0)
    )
    assert [one.cause for one in every] == ["host", "data", "sync"]


def test_findings_are_the_same_on_a_clock_of_another_pace():
    facts = Facts(workers=0, work=WORK)
    slow = summary(**{name: 16 * seconds for name, seconds in STAGES.items()} | {"data": 16.0, "other": 4.0})
    quick = summary(data=1.0, other=0.25)
    scaled = [replace(one, share=pytest.approx(one.share, abs=0.001)) for one in findings(machine(), facts, slow)]
    assert scaled == [*findings(machine(), facts, quick)]  # handing over a batch takes 2 ms at any pace


@pytest.mark.parametrize("stage", ["forward", "backward", "optimizer"])
def test_slow_code_of_a_stage_is_worth_its_part_of_the_samples(stage):
    code = SlowCode("train.py:31 `loss_of`", 9, 20, 30)
    finding = found("host", Facts(slow_code={stage: code}), summary())
    assert finding.share == pytest.approx(1.2 * 0.658 * STAGES[stage], rel=0.01)
    assert finding.low == pytest.approx(0.258 * STAGES[stage], rel=0.01)
    assert "`loss_of`" in finding.remedy
    varied = found("host", Facts(slow_code={stage: code}, widths={stage: 0.5, "other": 0.5}), summary())
    assert varied.low == pytest.approx(finding.low / 2)


def test_slow_code_on_an_accelerator_has_an_unknown_share_and_must_be_frequent():
    code, on = SlowCode("train.py:31 `loss_of`", 9, 20, 30), machine(accelerator="cuda")
    assert found("host", Facts(slow_code={"forward": code}), summary(), on).share is None
    assert found("host", Facts(slow_code={"forward": code._replace(of_all=100)}), summary(), on) is None


def test_slow_code_is_no_work_of_the_optimizer_or_of_a_recomputation():
    half = SlowCode("train.py:31 `hook`", 10, 20, 30)
    facts = Facts(optimizer="AdamW", tensors=400, elements=8, update_part=1.0)
    slow = replace(facts, slow_code={"optimizer": half})
    whole, rest = [found("optimizer", one, summary()).share for one in (facts, slow)]
    assert rest == pytest.approx(whole / 2)
    whole = found("recompute", Facts(work=WORK), summary()).share
    assert found("recompute", Facts(work=WORK, slow_code={"forward": half}), summary()).share == pytest.approx(
        whole / 2
    )


def test_a_long_startup_is_a_part_of_all_time():
    assert found("startup", of=summary(startup=30.0)) is None
    assert found("startup", of=summary(startup=100.0)).share == 0.5


def test_a_long_first_step_is_worth_the_time_beyond_a_usual_step():
    assert found("startup", of=summary(spans={"first_step": 30.0})) is None
    facts = Facts(first_seconds={"data": 30.0, "other": 34.0})  # 5 s are the startup
    finding = found("startup", facts, summary(spans={"first_step": 51.0}))
    assert (finding.share, "stage data" in finding.evidence) == (pytest.approx(50 / 151), True)


def test_a_first_step_that_compiles_has_a_finding_already():
    facts = Facts(compilations=Compilations(1, 40.0, 0, ""))
    every = findings(machine(), facts, summary(spans={"first_step": 50.0}))
    assert [one.cause for one in every] == ["compile"]
    facts = Facts(compilations=Compilations(1, 4.0, 0, ""))
    assert found("startup", facts, summary(spans={"first_step": 50.0}))


def test_flop_counts_of_the_callback_are_its_own():
    assert found("startup", of=summary(spans={"flop_counting": 10.0})) is None
    assert found("startup", of=summary(spans={"flop_counting": 25.0})).share == 0.2
