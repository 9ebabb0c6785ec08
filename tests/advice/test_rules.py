"""Each rule: where it speaks, of which cause and share, and where it must not. `wordings.txt` has its sentences."""

from dataclasses import replace

import pytest
from advised import PLAIN, STAGES, WORK, findings, found, machine, summary, used
from rows import each_row

from perf_callbacks.advice import step_blocks
from perf_callbacks.advice.compilations import Compilations
from perf_callbacks.advice.facts import Drift, Facts, SlowCode
from perf_callbacks.advice.loading import HAND_OVER_SECONDS, HIGH, LOW, faster
from perf_callbacks.kernel.records.fit_records import ENOUGH_STEPS
from perf_callbacks.kernel.records.machine_records import Memory
from perf_callbacks.memory.use import Leak

CUDA = machine(accelerator="cuda")
EXACT = dict.fromkeys(step_blocks.STAGES, 0.0)
LEAK = Leak(gb_per_hour=2.5, gb_per_step=0.0008, before_gb=3.0, after_gb=4.0)


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


def test_threads_beyond_cpus_are_advised_against_once():
    every = findings(machine(cpus=2), Facts(threads=8, starved_share=0.3), summary())
    assert [one.remedy for one in every] == ["OMP_NUM_THREADS=2"]


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
    use = used(parts=Memory(step=2, device="cpu", weights_gb=1.0, peak_gb=1.0 + taken))
    facts = Facts(workers=0, batch_bytes=10**9, memory=use, free_cpus=8.0)
    on = machine(memory_available=available, local_ranks=ranks)
    finding = found("data", facts, summary(data=3.0), on)
    assert (f"num_workers={workers})" in finding.remedy) == (workers > 0)
    assert "workers" not in finding.evidence.partition(";")[2] if said is None else said in finding.evidence
    assert found("data", replace(facts, batch_bytes=None), summary(data=3.0), on).remedy == "DataLoader(num_workers=4)"


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


@pytest.mark.parametrize(
    ("case", "seconds"), [((1, 1, 1, 8, 1), 1), ((4, 1, 2, 8, 1), 2), ((1, 1, 2, 2, 2), 1.5), ((8, 1, 16, 4, 1), 2.25)]
)
def test_the_slowest_of_computing_loading_and_the_cpus_sets_the_pace(case, seconds):
    assert faster(*case) == seconds


def test_the_line_that_waits_for_workers_is_not_the_one_that_is_slow():
    waiting = Facts(workers=1, data_line="train.py:3 `main`")
    assert waiting.data_line not in found("data", waiting, summary(data=1.0)).evidence


@pytest.mark.parametrize("facts", [{"work": replace(PLAIN, values_read={"/home/a/train.py:41": 2})}, {"log_every": 1}])
def test_values_that_are_read_and_logged_in_each_step(facts):
    logging = summary(other=1.0)
    assert found("sync", Facts(**facts), logging).share == (0.5 + 1) / 2
    assert found("host", Facts(**facts), logging) is None  # the same time is not told of twice


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


def test_an_optimizer_that_goes_from_tensor_to_tensor():
    facts = Facts(optimizer="AdamW", tensors=1234, elements=64.0, update_part=0.8 / 1.1)
    assert found("optimizer", facts, summary(optimizer=1.1)).share == pytest.approx(1.7 * 0.75 * 0.8 / 2.0)
    larger = replace(facts, elements=1e6)
    assert found("optimizer", larger, summary(optimizer=1.1)).share == pytest.approx(1.7 * 0.6 * 0.8 / 2.0)


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


@pytest.mark.parametrize(("kind", "most"), [("evaluation", 1.4), ("checkpoint", 1.6)])
def test_rarer_spans_are_worth_the_time_beyond_a_twentieth(kind, most):
    finding = found(kind, Facts(), summary(steps=90, spans={kind: 45.0}, counts={kind: 30}))
    saved = 45.0 * 0.9 / 135
    assert (finding.low, finding.share) == pytest.approx((0.75 * saved, most * saved))
    assert " 30 " in finding.remedy


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


def test_threads_without_a_cpu_come_first():
    every = findings(machine(), Facts(threads=16, workers=0), summary(data=1.0, other=0.5))
    assert [one.cause for one in every][:2] == ["threads", "data"]


FEW = Facts(threads=1, free_cpus=6.8)


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
    assert found("startup", of=summary(startup=100.0)).share == 0.5


def test_a_long_first_step_is_worth_the_time_beyond_a_usual_step():
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
    assert found("startup", of=summary(spans={"flop_counting": 25.0})).share == 0.2


def test_a_little_time_without_a_cpu_is_no_finding_and_slows_no_device():
    facts = Facts(workers=2, threads=2, starved_share=0.3)
    assert found("cpu", facts, summary(), machine(cpus=4)).remedy.startswith("more CPUs"), "a CPU for each"
    alone = found("cpu", Facts(workers=1, starved_share=0.3), summary(), machine(cpus=1))
    assert "num_workers" not in alone.remedy
    on_device = machine(cpus=2, accelerator="cuda")
    assert found("cpu", facts, summary(), on_device).remedy == "num_workers=1", "the device computes"
    assert found("host", Facts(starved_share=0.2), summary(other=1.0), CUDA).share == 1.4 * 0.5
    assert found("cpu", Facts(starved_share=0.2), summary(other=1.0), CUDA).share is None


@each_row(
    ("facts", "share", "low", "workers"),
    [
        (Facts(workers=0, widths=EXACT | {"data": 0.1}), 1.25 * 0.5, 0.449 * 0.7 * 0.9, 2),
        (Facts(workers=2, widths=EXACT), 0.5, 0.449 * 0.7, 5),
    ],
)
def test_workers_are_advised_where_steps_wait_for_data(facts, share, low, workers):
    finding = found("data", facts, summary(data=1.0))
    assert (finding.share, f"num_workers={workers}" in finding.remedy) == (share, True)
    assert finding.low == pytest.approx(low)


@each_row(
    ("facts", "seconds", "cpus", "share"),
    [
        (Facts(workers=2), 1.0, 2, 0.5),  # they have all CPUs
        (Facts(workers=0, threads=2), 0.25, 1, 0.2),  # computing takes all of it
        (Facts(workers=0, free_cpus=0.0), 0.5, 2, 1 / 3),  # other programs use them
    ],
)
def test_no_workers_are_advised_beyond_the_cpus(facts, seconds, cpus, share):
    finding = found("data", facts, summary(data=seconds), machine(cpus=cpus))
    assert (finding.share, "num_workers" in finding.remedy) == (pytest.approx(share), False)
    assert (
        found("data", Facts(workers=0, threads=2), summary(data=1.0), machine(accelerator="cuda", cpus=2)).share == 0.5
    )


def test_parts_of_other_are_findings_of_their_own_and_no_logging():
    for parts, log_every, shares in (
        ({"generation": 0.8}, None, {0.4: "host", 1.4 * 0.1: "host"}),
        ({"rewards": 0.8}, None, {0.4: "host", 1.4 * 0.1: "host"}),
        ({"generation": 0.8}, 1, {0.4: "host", 2.4 * 0.1: "sync"}),
        ({"generation": 0.002}, None, {1.4 * 0.499: "host"}),  # of nothing much
    ):
        of = replace(summary(other=1.0), other_seconds={name: 100 * seconds for name, seconds in parts.items()})
        every = findings(machine(), Facts(log_every=log_every), of)
        assert [one.cause for one in every] == [*shares.values()]
        assert [one.share for one in every] == pytest.approx([*shares])


EPOCHS = Facts(workers=2, work=PLAIN, epochs=10, epoch_wait_seconds=0.5, epoch_wait_in_rows=0.5)


def test_workers_that_start_for_each_epoch_are_advised_against_once():
    most = replace(summary(data=1.0), steps=200)  # of which 100 are measured
    (finding,) = [one for one in findings(machine(), EPOCHS, most) if one.cause == "data"]
    assert "persistent" in finding.remedy
    long = replace(EPOCHS, epoch_wait_seconds=1.4, epoch_wait_in_rows=1.4)
    assert found("data", long, summary(data=1.4)).share == pytest.approx((140 / 240 + 1) / 2), "not all of the time"


@each_row(
    ("changes", "advised"),
    [
        ({}, "persistent"),
        ({"persistent": True}, None),
        ({"workers": 0}, None),
        ({"epochs": 0, "epoch_wait_seconds": 0.0, "epoch_wait_in_rows": 0.0}, None),
        ({"epoch_wait_seconds": 0.2}, None),  # two workers that keep up take as long for a batch
        ({"persistent": True, "epochs": 0, "epoch_wait_in_rows": 0.0}, "num_workers=4"),
    ],
)
def test_workers_persist_where_their_start_is_waited_for(changes, advised):
    remedies = " ".join([one.remedy for one in findings(machine(), replace(EPOCHS, **changes), summary(data=0.5))])
    assert (advised or "") in remedies
    assert ("persistent" in remedies) == (advised == "persistent")


@each_row(("available", "lasts"), [(None, False), (11 * 10**9, True), (900 * 10**9, False), (10**8, False)])
def test_a_leak_says_how_long_memory_lasts_where_that_matters(available, lasts):
    finding = found("memory", Facts(memory=used(leak=LEAK)), summary(), machine(memory_available=available))
    assert (finding.share, " lasts " in finding.evidence) == (None, lasts)


def test_a_leak_comes_before_a_full_device():
    leak = found("memory", Facts(memory=used(leak=LEAK)), summary())
    assert leak == found("memory", Facts(memory=used(leak=LEAK, retries=3)), summary())


def collected(**known):
    return summary(gc=known)


EAGER = Facts(work=PLAIN, attention="eager", sdpa=True)
ADAMW = Facts(optimizer="AdamW", update_part=1.0)
SLOW_UPDATE = summary(optimizer=1.1)


@each_row(
    ("cause", "facts", "of", "on"),
    [
        ("cpu", Facts(starved_share=0.04), summary(), machine()),
        ("data", None, summary(data=0.002), machine()),
        ("data", Facts(workers=2), summary(data=0.1), machine()),  # the hand-over of a batch
        ("host", None, summary(other=0.002), machine()),
        ("sync", Facts(log_every=1), summary(other=0.002), machine()),
        ("sync", Facts(log_every=50), summary(other=1.0), machine()),
        *[("padding", Facts(), summary(useful=useful), machine()) for useful in (None, 0.95, 1, 1.5)],
        *[("recompute", Facts(work=work), summary(), machine()) for work in (PLAIN, None)],
        *[
            ("attention", replace(EAGER, **changes), summary(), machine())
            for changes in ({"attention": "sdpa"}, {"sdpa": False}, {"work": None})
        ],
        *[
            ("optimizer", replace(ADAMW, **changes), SLOW_UPDATE, machine())
            for changes in ({"fused": True}, {"optimizer": "Muon"}, {"optimizer": None}, {"update_part": None})
        ],
        ("optimizer", ADAMW, SLOW_UPDATE, CUDA),  # many tensors at once
        ("gc", None, collected(gc_seconds=100.0, gc_collections=(7, 1, 0)), machine()),  # before the schedule
        *[("gc", None, collected(gc_seconds=seconds), machine()) for seconds in (None, 0.0, 0.5)],
        *[
            ("evaluation", None, summary(spans={"evaluation": seconds}, counts={"evaluation": count}), machine())
            for seconds, count in ((4.0, 30), (45.0, 1), (0.0, 0))
        ],
        ("memory", Facts(memory=used(parts=Memory(step=2, device="cuda", peak_gb=70.5))), summary(), machine()),
        ("memory", Facts(), summary(), machine()),
        ("threads", Facts(threads=8), None, machine()),
        ("threads", Facts(threads=8, left_cpus=1.0), None, machine()),  # unknown before the run
        ("threads", Facts(threads=16), None, CUDA),
        ("startup", None, summary(startup=30.0), machine()),
        ("startup", None, summary(spans={"first_step": 30.0}), machine()),
        ("startup", None, summary(spans={"flop_counting": 10.0}), machine()),
    ],
)
def test_a_rule_is_silent(cause, facts, of, on):
    assert found(cause, facts, of, on) is None
