"""Each rule: where it speaks and with which sentence, and where it must not."""

from dataclasses import replace

import pytest
from advised import PLAIN, STAGES, WORK, found, machine, summary

from perf_callbacks.advice import table
from perf_callbacks.advice.facts import FEWEST_STEPS, Facts
from perf_callbacks.advice.loading import faster
from perf_callbacks.kernel.records.fit_records import Finding


def test_nothing_is_wrong_with_a_run_that_only_computes():
    assert table.findings(machine(), Facts(workers=0, work=PLAIN, sdpa=True, attention="sdpa"), summary()) == ()


def test_a_run_of_a_few_steps_tells_nothing():
    few = summary(steps=FEWEST_STEPS - 1, data=5.0, other=5.0, optimizer=5.0)
    assert table.findings(machine(), Facts(workers=0, work=WORK), few) == ()


@pytest.mark.parametrize(
    ("door", "remedy"),
    [
        ("loop", "DataLoader(num_workers=2)"),
        ("lightning", "DataLoader(num_workers=2)"),
        ("transformers", "TrainingArguments(dataloader_num_workers=2)"),
    ],
)
def test_workers_are_advised_where_steps_wait_for_data(door, remedy):
    assert found("data", Facts(integration=door, workers=0), summary(data=1.0)) == Finding(
        cause="data",
        share=pytest.approx(0.449),
        evidence="Waiting for data took 50% of the run: num_workers=0",
        remedy=remedy,
    )


def test_more_workers_are_advised_where_those_there_are_too_slow():
    finding = found("data", Facts(workers=2), summary(data=1.0))
    assert (finding.remedy, finding.share) == ("DataLoader(num_workers=5)", pytest.approx(0.449))


def test_the_hand_over_of_a_batch_by_workers_is_no_wait():
    assert found("data", Facts(workers=2), summary(data=0.1)) is None


def test_an_iterable_that_is_no_loader_is_told_to_load_in_the_background():
    finding = found("data", Facts(workers=None), summary(data=1.0))
    assert finding.evidence == "Waiting for data took 50% of the run"
    assert finding.remedy == "loading in the background, as DataLoader(num_workers=2) does"


def test_workers_beyond_the_cpus_are_not_advised():
    finding = found("data", Facts(workers=2), summary(data=1.0), machine(cpus=2))
    assert (
        finding.evidence == "Waiting for data took 50% of the run: num_workers=2; 2 CPUs leave no room for more workers"
    )
    assert finding.remedy == "caching prepared samples, or cheaper transforms"


def test_cpus_that_compute_all_the_time_leave_nothing_for_workers():
    finding = found("data", Facts(workers=0, threads=2), summary(data=0.25), machine(cpus=1))
    assert finding.evidence.endswith("; the CPU is busy")


def test_on_an_accelerator_computing_takes_one_cpu():
    on = machine(accelerator="cuda", cpus=2)
    assert found("data", Facts(workers=0, threads=2), summary(data=1.0), on).share == pytest.approx(0.449)


def test_a_wait_of_nothing_is_no_finding():
    assert found("data", of=summary(data=0.002)) is None


@pytest.mark.parametrize(
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
    finding = found("data", Facts(workers=0, **facts), summary(data=0.5), machine(cpus=2))
    assert finding.share == pytest.approx(share)


def test_workers_are_not_advised_where_other_programs_use_the_cpus():
    finding = found("data", Facts(workers=0, free_cpus=0.0), summary(data=0.5), machine(cpus=2))
    assert finding.evidence == "Waiting for data took 33% of the run: num_workers=0; 2 CPUs are busy"
    assert finding.remedy == "caching prepared samples, or cheaper transforms"


@pytest.mark.parametrize(
    ("case", "seconds"),
    [((1, 1, 1, 8, 1), 1), ((4, 1, 2, 8, 1), 2), ((1, 1, 2, 2, 2), 1.5), ((8, 1, 16, 4, 1), 2.25)],
)
def test_the_slowest_of_computing_loading_and_the_cpus_sets_the_pace(case, seconds):
    assert faster(*case) == seconds


def test_python_work_between_the_stages():
    finding = found("host", of=summary(other=1.0))
    assert finding.share == 0.5
    assert finding.evidence == (
        "Python code outside of forward, backward and optimizer (callbacks, metrics, logging) took 50% of the run"
    )
    assert found("host", of=summary(other=0.002)) is None


def test_the_line_that_keeps_the_steps_busy_is_named():
    lines = {"host_line": "train.py:3 `score`", "data_line": "data.py:7 `parse`", "collect_line": "train.py:9 `main`"}
    gc = {"gc_seconds": 100.0, "gc_collections": (0, 0, 9)}
    facts = Facts(**lines, collect_seconds=60.0, workers=0)
    assert found("host", facts, summary(other=1.0)).evidence.endswith(
        " took 50% of the run, mostly at train.py:3 `score`"
    )
    assert found("data", facts, summary(data=1.0)).evidence.endswith(": num_workers=0, mostly at data.py:7 `parse`")
    assert found("gc", facts, summary(gc=gc)).remedy == "removing calls of gc.collect(), first at train.py:9 `main`"


def test_the_line_that_waits_for_workers_is_not_the_one_that_is_slow():
    evidence = found("data", Facts(workers=1, data_line="train.py:3 `main`"), summary(data=1.0)).evidence
    assert evidence.endswith(": num_workers=1")


@pytest.mark.parametrize(
    ("facts", "evidence", "remedy"),
    [
        (
            {"work": replace(PLAIN, values_read={"/home/a/train.py:41": 2})},
            "`.item()` or the like in train.py:41",
            "logging every 50 steps",
        ),
        (
            {"log_every": 1, "integration": "transformers"},
            "the trainer logs every step",
            "TrainingArguments(logging_steps=50)",
        ),
        ({"log_every": 1, "integration": "lightning"}, "the trainer logs every step", "Trainer(log_every_n_steps=50)"),
    ],
)
def test_values_that_are_read_and_logged_in_each_step(facts, evidence, remedy):
    logging = summary(other=1.0)
    finding = found("sync", Facts(**facts), logging)
    assert (finding.share, finding.remedy) == (0.5, remedy)
    assert finding.evidence == f"Reading values and logging them in each step took 50% of the run: {evidence}"
    assert found("host", Facts(**facts), logging) is None  # the same time is not told of twice


def test_values_that_are_read_for_nothing_much_are_no_finding():
    assert found("sync", Facts(log_every=1), summary(other=0.002)) is None
    assert found("sync", Facts(log_every=50), summary(other=1.0)) is None


FEWER = "fewer or shorter completions (num_generations, max_completion_length)"


def grpo(**parts):
    """Steps of two seconds, of which one is work of TRL's."""
    return replace(summary(other=1.0), other_seconds={name: 100 * seconds for name, seconds in parts.items()})


@pytest.mark.parametrize(
    ("parts", "on", "evidence", "remedy"),
    [
        (
            {"generation": 0.8},
            machine(),
            "Generating completions took 40% of the run",
            FEWER,
        ),
        (
            {"generation": 0.8},
            machine(accelerator="cuda"),
            "Generating completions took 40% of the run",
            f"use_vllm=True in the trainer's arguments, or {FEWER}",
        ),
        (
            {"rewards": 0.8},
            machine(),
            "Computing rewards took 40% of the run",
            "reward functions that take all completions at once",
        ),
    ],
)
def test_parts_of_other_are_named(parts, on, evidence, remedy):
    worst, rest = table.findings(on, Facts(), grpo(**parts))
    assert (worst.cause, worst.share, worst.evidence, worst.remedy) == ("host", 0.4, evidence, remedy)
    assert (rest.cause, rest.share) == ("host", pytest.approx(0.1))


def test_parts_of_other_are_no_logging():
    causes = {one.evidence: one.share for one in table.findings(machine(), Facts(log_every=1), grpo(generation=0.8))}
    assert causes == {
        "Generating completions took 40% of the run": 0.4,
        "Reading values and logging them in each step took 10% of the run: the trainer logs every step": pytest.approx(
            0.1
        ),
    }


def test_parts_of_other_that_take_nothing_are_no_finding():
    assert [one.share for one in table.findings(machine(), Facts(), grpo(generation=0.002))] == [pytest.approx(0.499)]


def test_recomputation_is_worth_its_share_of_the_forward():
    finding = found("recompute", Facts(work=WORK), summary())
    assert finding.share == pytest.approx(0.1)
    assert finding.evidence == (
        "Recomputation for activation checkpointing takes 10% of executed FLOPs while 40 GB of memory are free"
    )
    assert finding.remedy == "model.gradient_checkpointing_disable(), or checkpointing fewer layers"
    trainer = found("recompute", Facts(work=WORK, integration="transformers"), summary())
    assert trainer.remedy == "TrainingArguments(gradient_checkpointing=False)"


def test_the_memory_of_the_host_is_not_that_of_an_accelerator():
    finding = found("recompute", Facts(work=WORK), summary(), machine(accelerator="cuda"))
    assert finding.evidence.endswith("10% of executed FLOPs")


@pytest.mark.parametrize("work", [PLAIN, None])
def test_no_recomputation_is_no_finding(work):
    assert found("recompute", Facts(work=work), summary()) is None


def test_eager_attention_where_the_model_could_fuse_it():
    finding = found("attention", Facts(work=PLAIN, attention="eager", sdpa=True), summary())
    assert finding.share == pytest.approx(0.25 * 0.9)
    assert finding.evidence == (
        'Attention is not fused (attn_implementation="eager"), and its products are 25% of the FLOPs'
    )
    assert finding.remedy == 'from_pretrained(..., attn_implementation="sdpa")'


@pytest.mark.parametrize("facts", [{"attention": "sdpa"}, {"sdpa": False}, {"work": None}])
def test_attention_that_is_fused_or_can_not_be_is_no_finding(facts):
    assert found("attention", Facts(**{"work": PLAIN, "attention": "eager", "sdpa": True} | facts), summary()) is None


def test_an_optimizer_that_goes_from_tensor_to_tensor():
    facts = Facts(optimizer="AdamW", tensors=1234)
    finding = found("optimizer", facts, summary(optimizer=1.1))
    assert finding.share == pytest.approx(0.7 * 1.1 / 2.0)
    assert finding.evidence == "The optimizer took 55% of the run: AdamW updates 1,234 tensors one by one"
    assert finding.remedy == "torch.optim.AdamW(..., fused=True)"
    trainer = found("optimizer", replace(facts, integration="transformers"), summary(optimizer=1.1))
    assert trainer.remedy == 'TrainingArguments(optim="adamw_torch_fused")'


@pytest.mark.parametrize("facts", [{"fused": True}, {"optimizer": "Muon"}, {"optimizer": None}])
def test_an_optimizer_that_can_not_be_fused_is_no_finding(facts):
    assert found("optimizer", Facts(**{"optimizer": "AdamW"} | facts), summary(optimizer=1.1)) is None


def test_an_accelerator_updates_many_tensors_at_once():
    assert found("optimizer", Facts(optimizer="AdamW"), summary(optimizer=1.1), machine(accelerator="cuda")) is None


@pytest.mark.parametrize(
    ("setting", "asked", "scheduled", "remedy"),
    [
        ("sync", 60.0, 0.0, "removing calls of gc.collect()"),
        ("observe", 60.0, 0.0, "removing calls of gc.collect()"),
        ("observe", 40.0, 0.0, 'PerfConfig(gc="sync")'),
        (
            "sync",
            60.0,
            90.0,
            "breaking reference cycles: gc.set_debug(gc.DEBUG_SAVEALL) shows which objects are in gc.garbage",
        ),
    ],
)
def test_garbage_is_collected_for_long(setting, asked, scheduled, remedy):
    gc = {"gc_seconds": 100.0, "gc_scheduled_seconds": scheduled, "gc_collections": (7, 1, 2)}
    finding = found("gc", Facts(gc=setting, collect_seconds=asked), summary(gc=gc, forward=1.3))
    assert (finding.share, finding.remedy) == (0.5, remedy)
    assert finding.evidence == "Garbage collection took 50% of the run (10 collections)"


def test_young_collections_before_the_schedule_are_nobodys_calls():
    gc = {"gc_seconds": 100.0, "gc_collections": (7, 1, 0)}
    assert found("gc", of=summary(gc=gc)) is None


def test_waits_for_workers_that_start_are_advised_once():
    most = replace(summary(data=1.0), steps=200)  # of which 100 are measured
    facts = replace(EPOCHS, epoch_wait_seconds=0.5, epoch_wait_in_rows=0.5)
    assert found("data", facts, most).remedy == "DataLoader(num_workers=2, persistent_workers=True)"
    assert len([one for one in table.findings(machine(), facts, most) if one.cause == "data"]) == 1


@pytest.mark.parametrize("seconds", [None, 0.0, 0.5])
def test_a_little_garbage_is_no_finding(seconds):
    assert found("gc", of=summary(gc={"gc_seconds": seconds})) is None


@pytest.mark.parametrize(
    ("kind", "door", "remedy"),
    [
        ("evaluation", "loop", "one after every 30 steps"),
        ("evaluation", "transformers", "TrainingArguments(eval_steps=30)"),
        ("checkpoint", "lightning", "ModelCheckpoint(every_n_train_steps=30)"),
    ],
)
def test_what_is_done_too_often(kind, door, remedy):
    often = summary(steps=90, spans={kind: 45.0}, counts={kind: 30})
    finding = found(kind, Facts(integration=door), often)
    assert finding.share == pytest.approx(45.0 * 0.9 / 135)
    assert finding.evidence == f"{kind.title()}s took 33% of the run: one after every 3 steps"
    assert finding.remedy == remedy


@pytest.mark.parametrize(("seconds", "count"), [(4.0, 30), (45.0, 1), (0.0, 0)])
def test_a_rare_evaluation_is_no_finding(seconds, count):
    assert found("evaluation", of=summary(spans={"evaluation": seconds}, counts={"evaluation": count})) is None


def test_eager_attention_is_known_before_the_run():
    finding = found("attention", Facts(attention="eager", sdpa=True))
    assert (finding.share, finding.evidence) == (None, 'Attention is not fused (attn_implementation="eager")')


@pytest.mark.parametrize(
    ("facts", "cause", "remedy"),
    [
        ({"blocking": True}, "sync", "unsetting CUDA_LAUNCH_BLOCKING"),
        ({"anomalies": True}, "host", "torch.autograd.set_detect_anomaly(False)"),
        ({"threads": 16}, "host", "OMP_NUM_THREADS=8"),
    ],
)
def test_advice_that_needs_no_run(facts, cause, remedy):
    (finding,) = table.findings(machine(), Facts(**facts))
    assert (finding.cause, finding.share, finding.remedy) == (cause, None, remedy)
    assert table.findings(machine(), Facts(threads=8)) == ()


def test_threads_of_the_host_hardly_matter_to_an_accelerator():
    assert table.findings(machine(accelerator="cuda"), Facts(threads=16)) == ()


EPOCHS = Facts(workers=2, work=PLAIN, epochs=10, epoch_wait_seconds=0.5, epoch_wait_in_rows=0.5)


@pytest.mark.parametrize(
    ("door", "remedy"),
    [
        ("loop", "DataLoader(num_workers=2, persistent_workers=True)"),
        ("transformers", "TrainingArguments(dataloader_persistent_workers=True)"),
    ],
)
def test_workers_that_are_started_for_each_epoch(door, remedy):
    evidence = "Waiting for the first batch of 10 epochs took 33% of the run: workers are started for each epoch"
    assert table.findings(machine(), replace(EPOCHS, integration=door), summary(data=0.5)) == (
        Finding(cause="data", share=pytest.approx((50 - 10 * 2 * 1.5) / 150), evidence=evidence, remedy=remedy),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"persistent": True},
        {"workers": 0},
        {"epochs": 0, "epoch_wait_seconds": 0.0, "epoch_wait_in_rows": 0.0},
        {"epoch_wait_seconds": 0.3},  # two workers that keep up take as long for a batch
    ],
)
def test_workers_that_need_not_persist(changes):
    every = table.findings(machine(), replace(EPOCHS, **changes), summary(data=0.5))
    assert all("persistent" not in one.remedy for one in every)


def test_the_wait_for_workers_that_start_is_no_reason_for_more_of_them():
    more = found("data", replace(EPOCHS, persistent=True, epochs=0, epoch_wait_in_rows=0.0), summary(data=0.5))
    assert more.remedy == "DataLoader(num_workers=4)"
    assert found("data", EPOCHS, summary(data=0.5)).evidence.endswith("workers are started for each epoch")


FEW = Facts(threads=1, free_cpus=6.8)


def test_more_threads_are_advised_where_most_cpus_are_idle():
    (finding,) = table.findings(machine(), FEW, summary())
    assert (finding.cause, finding.share) == ("host", None)
    assert finding.evidence == "Operations use 1 thread, and 7 of 8 CPUs were idle"
    assert finding.remedy == "OMP_NUM_THREADS=7, if the operations are large"


@pytest.mark.parametrize(
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
    assert all("threads" not in one.remedy.lower() for one in table.findings(on, facts, of))


def test_the_finding_that_could_win_most_comes_first():
    every = table.findings(machine(), Facts(workers=0, work=PLAIN, blocking=True), summary(data=1.0, other=3.0))
    assert [one.cause for one in every] == ["host", "data", "sync"]


def test_findings_are_the_same_on_a_clock_of_another_pace():
    facts = Facts(workers=0, work=WORK, optimizer="AdamW")
    slow = summary(**{name: 16 * seconds for name, seconds in STAGES.items()} | {"data": 16.0, "other": 4.0})
    quick = summary(data=1.0, other=0.25)
    scaled = [replace(one, share=pytest.approx(one.share, abs=0.001)) for one in table.findings(machine(), facts, slow)]
    assert scaled == [*table.findings(machine(), facts, quick)]  # handing over a batch takes 2 ms at any pace
