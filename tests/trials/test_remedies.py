"""The table of remedies: which lines of advice a trial can apply, and what it tries."""

import re
from pathlib import Path

import pytest
from rows import each_row

from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.trials.plan import TrialOutcome
from perf_callbacks.trials.remedies import GROUPS, REMEDIES, candidates, of_finding, settings

WORDINGS = Path(__file__).parents[1] / "advice" / "wordings.txt"
LINES = sorted(set(re.findall(r"^  (?:\w+: )?try (.*)$", WORDINGS.read_text(encoding="utf-8"), re.MULTILINE)))

EXPECTED = {
    "DataLoader(num_workers=#)": "workers",
    "TrainingArguments(dataloader_num_workers=#)": "workers",
    "loading in the background, as DataLoader(num_workers=#) does": "workers",
    "num_workers=#": "workers",
    "DataLoader(num_workers=#, persistent_workers=True)": "persistence",
    "TrainingArguments(dataloader_persistent_workers=True)": "persistence",
    "DataLoader(num_workers=#, prefetch_factor=#)": "prefetch",
    "TrainingArguments(dataloader_prefetch_factor=#)": "prefetch",
    "OMP_NUM_THREADS=#": "threads",
    "OMP_NUM_THREADS=#, if the operations are large": "threads",
    "TrainingArguments(logging_steps=#)": "logging",
    "Trainer(log_every_n_steps=#)": "logging",
    "TrainingArguments(logging_nan_inf_filter=False)": "nan_filter",
    "model.activation_checkpointing_disable(), or checkpointing fewer layers": "checkpointing",
    "TrainingArguments(activation_checkpointing=False)": "checkpointing",
    'from_pretrained(..., attn_implementation="sdpa")': "attention",
    "torch.optim.AdamW(..., fused=True)": "optimizer",
    'TrainingArguments(optim="adamw_torch_fused")': "optimizer",
    "PERF_CALLBACKS_GC=sync": "gc",
    "PERF_CALLBACKS_GC=sync, so that all ranks collect at the same step": "gc",
    'TrainingArguments(train_sampling_strategy="batch_rebalance") of transformers #.#, or packing': "rebalance",
    'torch.set_float#_matmul_precision("high")': "precision",
    "torch.compile(model)": "compile",
    "TrainingArguments(torch_compile=True)": "compile",
}
"""Each line of advice that a trial can apply, with the name of its remedy. `#` is a number."""

NUMBERED = {"workers", "prefetch", "threads", "logging"}
"""Remedies that take the last number of their line."""


def finding(line, cause="data", share=0.5):
    return Finding(cause=cause, share=share, evidence="Waiting took 50% of the run", remedy=line)


def probe(*lines, **found):
    return TrialOutcome(steps=60, seconds=1.0, findings=tuple(map(finding, lines)), **found)


def names(found):
    return [(one.remedy.name, one.value) for one in found]


@each_row("line", LINES)
def test_a_line_calls_for_its_remedy(line):
    candidate, name = of_finding(finding(line)), EXPECTED.get(re.sub(r"\d+", "#", line))
    assert (candidate and candidate.remedy.name) == name
    if candidate is not None:
        assert candidate.value == (int(re.findall(r"\d+", line)[-1]) if name in NUMBERED else None)
        assert (candidate.line, candidate.promised, candidate.called_for) == (line, (1.0, 2.0), True)


def test_the_lines_of_the_table_are_lines_of_rules():
    assert {*EXPECTED} <= {re.sub(r"\d+", "#", line) for line in LINES}


def test_the_largest_finding_gives_the_number():
    assert names(candidates(probe("num_workers=7", "DataLoader(num_workers=2)"), (), 8)) == [("workers", 7)]


def test_compilation_is_tried_on_request_only():
    found = probe("torch.compile(model)", "OMP_NUM_THREADS=8")
    assert names(candidates(found, (), 8)) == [("threads", 8)]
    assert names(candidates(found, ("compile",), 8)) == [("compile", None)]


@pytest.mark.parametrize("cpus", [1, 8])
def test_a_group_is_tried_without_a_finding(cpus):
    assert not any([one.called_for for one in candidates(probe(), GROUPS, cpus)])
    tried = names(candidates(probe(), GROUPS, cpus))
    number = max(1, cpus - 1)
    numbers = {"workers": number, "threads": number}
    assert tried == [
        (name, numbers.get(name)) for name in ("workers", "optimizer", "precision", "threads", "gc", "compile")
    ]
    assert "{" not in "".join([one.line + one.title for one in candidates(probe(), GROUPS, cpus)])


def test_a_group_keeps_the_number_of_a_finding():
    assert names(candidates(probe("DataLoader(num_workers=3)"), ("loader",), 8)) == [("workers", 3)]


def test_a_program_with_its_own_callback_keeps_its_checklist():
    lines = ("PERF_CALLBACKS_GC=sync", "OMP_NUM_THREADS=8")
    found = probe(*lines, applied=("pinning", "affinity"))
    assert names(candidates(found, (), 8)) == [("pinning", None), ("threads", 8), ("gc", None), ("affinity", None)]
    own = probe(*lines, applied=("pinning", "affinity"), own_callback=True)
    assert names(candidates(own, (), 8)) == [("threads", 8)]
    assert names(candidates(own, ("gc",), 8)) == []


def test_titles():
    found = candidates(probe("DataLoader(num_workers=1)", "OMP_NUM_THREADS=1"), (), 8)
    assert [one.title for one in found] == ["loader: 1 worker", "threads: 1"]
    titles = [remedy.title for remedy in REMEDIES]
    assert len({*titles}) == len(titles)


def test_the_settings_of_a_trial():
    bare = {"CHECKLIST": "on", "GC": "observe", "AFFINITY": "off", "LOADERS": "off"}

    def variables(**changed):
        return {f"PERF_CALLBACKS_{name}": value for name, value in (bare | changed).items()}

    assert settings({}, own_callback=False) == variables()
    changes = dict.fromkeys(("gc", "affinity", "pinning"))
    assert settings(changes, own_callback=False) == variables(GC="sync", AFFINITY="auto", LOADERS="apply")
    assert settings({"threads": 3}, own_callback=True) == {"OMP_NUM_THREADS": "3"}
