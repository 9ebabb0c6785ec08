"""Each rule: where it speaks, of which cause and share, and where it must not. `wordings.txt` has its sentences."""

from dataclasses import replace

import pytest
from advised import PLAIN, STAGES, WORK, findings, found, machine, summary, used
from rows import each_row

from perf_callbacks.advice import step_blocks
from perf_callbacks.advice.compilations import Compilations
from perf_callbacks.advice.facts import Drift, Facts, SlowCode
from perf_callbacks.advice.loading import HAND_OVER_SECONDS, faster
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


def test_the_lack_of_a_cpu_comes_before_its_effects():
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


@pytest.mark.parametrize("stage", ["communication", "backward"])
def test_steps_that_wait_longer_for_other_ranks_are_no_drift_of_this_rank(stage):
    drifts = Drift(first=0.04, last=0.06, share=0.2, stage=stage)
    assert found("drift", Facts(drift=drifts, ddp=True), summary()) is None
    assert found("drift", Facts(drift=drifts._replace(stage="other"), starved_share=0.2), summary()) is None


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


@pytest.mark.parametrize(
    ("case", "seconds"), [((1, 1, 1, 8, 1), 1), ((4, 1, 2, 8, 1), 2), ((1, 1, 2, 2, 2), 1.5), ((8, 1, 16, 4, 1), 2.25)]
)
def test_the_slowest_of_computing_loading_and_the_cpus_sets_the_pace(case, seconds):
    assert faster(*case) == seconds


def test_the_line_that_waits_for_workers_is_not_slow():
    waiting = Facts(workers=1, data_line="train.py:3 `main`")
    assert waiting.data_line not in found("data", waiting, summary(data=1.0)).evidence


@pytest.mark.parametrize("facts", [{"work": replace(PLAIN, values_read={"/home/a/train.py:41": 2})}, {"log_every": 1}])
def test_values_that_are_read_and_logged_in_each_step(facts):
    logging = summary(other=1.0)
    assert found("sync", Facts(**facts), logging).share == (0.5 + 1) / 2
    assert found("host", Facts(**facts), logging) is None  # the same time is not told of twice


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


def test_threads_beyond_cpus_are_advised_against_once():
    every = findings(machine(cpus=2), Facts(threads=8, starved_share=0.3), summary())
    assert [finding.remedy for finding in every] == ["OMP_NUM_THREADS=2"]


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


def test_a_first_step_that_compiles_has_a_finding_already():
    facts = Facts(compilations=Compilations(1, 40.0, 0, ""))
    every = findings(machine(), facts, summary(spans={"first_step": 50.0}))
    assert [one.cause for one in every] == ["compile"]
    facts = Facts(compilations=Compilations(1, 4.0, 0, ""))
    assert found("startup", facts, summary(spans={"first_step": 50.0}))


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
        ("host", Facts(slow_code={"forward": SlowCode("train.py:31 `loss_of`", 9, 20, 100)}), summary(), CUDA),
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
