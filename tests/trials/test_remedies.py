"""The table of remedies: which lines of advice a trial can apply, and what it tries."""

import re
from pathlib import Path

import pytest
from rows import each_row

from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.trials.plan import TrialOutcome
from perf_callbacks.trials.remedies import GROUPS, REMEDIES, candidates, of_finding, settings

WORDINGS = Path(__file__).parents[1] / "advice" / "wordings.txt"
LINES = sorted(set(re.findall(r"^  try (.*)$", WORDINGS.read_text(encoding="utf-8"), re.MULTILINE)))

EXPECTED = {
    "DataLoader(num_workers=2)": ("workers", 2),
    "TrainingArguments(dataloader_num_workers=2)": ("workers", 2),
    "DataLoader(num_workers=5)": ("workers", 5),
    "loading in the background, as DataLoader(num_workers=2) does": ("workers", 2),
    "num_workers=7": ("workers", 7),
    "DataLoader(num_workers=2, persistent_workers=True)": ("persistence", None),
    "TrainingArguments(dataloader_persistent_workers=True)": ("persistence", None),
    "DataLoader(num_workers=1)": ("workers", 1),
    "DataLoader(num_workers=3)": ("workers", 3),
    "DataLoader(num_workers=2, prefetch_factor=4)": ("prefetch", 4),
    "TrainingArguments(dataloader_prefetch_factor=4)": ("prefetch", 4),
    "OMP_NUM_THREADS=1": ("threads", 1),
    "OMP_NUM_THREADS=2": ("threads", 2),
    "OMP_NUM_THREADS=5": ("threads", 5),
    "OMP_NUM_THREADS=8": ("threads", 8),
    "OMP_NUM_THREADS=7, if the operations are large": ("threads", 7),
    "TrainingArguments(logging_steps=50)": ("logging", 50),
    "Trainer(log_every_n_steps=50)": ("logging", 50),
    "TrainingArguments(logging_nan_inf_filter=False)": ("nan_filter", None),
    "model.activation_checkpointing_disable(), or checkpointing fewer layers": ("checkpointing", None),
    "TrainingArguments(activation_checkpointing=False)": ("checkpointing", None),
    'from_pretrained(..., attn_implementation="sdpa")': ("attention", None),
    "torch.optim.AdamW(..., fused=True)": ("optimizer", None),
    'TrainingArguments(optim="adamw_torch_fused")': ("optimizer", None),
    "PERF_CALLBACKS_GC=sync": ("gc", None),
    "PERF_CALLBACKS_GC=sync, so that all ranks collect at the same step": ("gc", None),
    'TrainingArguments(train_sampling_strategy="batch_rebalance") of transformers 5.23, or packing': (
        "rebalance",
        None,
    ),
    'torch.set_float32_matmul_precision("high")': ("precision", None),
    "torch.compile(model)": ("compile", None),
    "TrainingArguments(torch_compile=True)": ("compile", None),
}
"""Each line of advice that a trial can apply, with the name of its remedy and its number."""


def finding(line, cause="data", share=0.5):
    return Finding(cause=cause, share=share, evidence="Waiting took 50% of the run", remedy=line)


def probe(*lines, **found):
    return TrialOutcome(steps=60, seconds=1.0, findings=tuple(map(finding, lines)), **found)


def names(found):
    return [(one.remedy.name, one.value) for one in found]


@each_row("line", LINES)
def test_a_line_calls_for_its_remedy(line):
    found = of_finding(finding(line))
    if line not in EXPECTED:
        assert found is None
        return
    assert (found.remedy.name, found.value) == EXPECTED[line]
    assert found.line == line
    assert found.promised == (1.0, 2.0)
    assert found.called_for


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
