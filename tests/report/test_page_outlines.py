"""Outlines of pages, compared whole with `outlines.txt`: verdicts, figures, charts in words, tables, explanations.

`WRITE_SNAPSHOTS=1 python -m pytest tests/report/test_page_outlines.py` writes the file anew.
"""

from dataclasses import replace
from pathlib import Path

from fakes import a_run
from journals import COUNT, FINDING, PROFILE, a_fit, a_summary, steps
from snapshots import matches

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import SCHEMA, Finding, Span, Window
from perf_callbacks.kernel.records.machine_records import Use
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.summary_parts import StallSummary
from perf_callbacks.report.history import gather
from perf_callbacks.report.payload import payload

REGISTRY = {"meaning", "source", "left_out"}
"""Parts of explanations that come from a registry."""


def outline(value, indent=""):
    """The lines of a part of a page. Long columns of numbers are counted, and empty parts are left out."""
    if isinstance(value, dict):
        named = value.items() if "equation" not in value else [pair for pair in value.items() if pair[0] != "columns"]
        for name, part in named:
            lines = [*outline(part, f"{indent}  ")] if name not in REGISTRY else []
            if len(lines) == 1 and not isinstance(part, dict):
                yield f"{indent}{name}: {lines[0].strip()}"
            elif lines:
                yield from [f"{indent}{name}:", *lines]
    elif not isinstance(value, list | tuple):
        yield from [f"{indent}{value}"] if value not in {None, ""} else []
    elif any(isinstance(part, dict | list | tuple) for part in value):
        for part in value:
            lines = [*outline(part, f"{indent}  ")]
            yield from [f"{indent}- {lines[0].strip()}", *lines[1:]] if lines else []
    elif len(value) > 8 and not any(isinstance(part, str) for part in value):
        yield f"{indent}{len(value)} numbers"
    elif value:
        yield indent + " | ".join(["—" if part is None else str(part) for part in value])


def selected(page, parts):
    """These parts of a page: `figures.mfu` is the figure with this key."""
    for name in parts:
        part, _, key = name.partition(".")
        value = page[part]
        if key:
            value = value[key] if isinstance(value, dict) else next(one for one in value if one["key"] == key)
        yield from outline({name: value})


def page(*journals, **options):
    return payload(gather(journals), **options)


def of(*records, t=0.0):
    return page([Entry(t, record) for record in records])


def hung(*summaries, ranks=1, more=()):
    """A page of ranks without a summary at their end, with a summary so far of each."""
    journals = [[*a_fit(rank, summary=False, world_size=ranks), *more] for rank in range(ranks)]
    return payload(gather(journals, [lambda _, found=found: Entry(111.0, found) for found in summaries]))


HUNG = Stall(step=20, rank=0, stage="data", since_seconds=60.0, stack=("train.py:3 main", "loader.py:41 next"))
HANG = "The training hangs: no step has ended for 104 s after step 20, 94% of the run. Rank 0 is in data: loader.py:41"


def so_far(*, under_way=True):
    """The summary so far of a run that hangs, at second 111."""
    stall = Finding(
        cause="stall", share=104 / 111 if under_way else 0.004, evidence=HANG, remedy="`perf-callbacks report`"
    )
    stalls = StallSummary(count=1, seconds=104.0, under_way=under_way, where="The training is in data")
    return replace(a_summary(findings=(stall, FINDING) if under_way else (FINDING, stall)), stalls=stalls)


QUIET = replace(a_summary(findings=(FINDING,)), stalls=StallSummary(count=1, seconds=9.0, under_way=True))
TWO = {"world_size": 2, "timeline": "device", "tensor_cores": True}
SLOW = Straggler(step=18, rank=1, cause="data", seconds_lost=1.5, steps=4)
COMPARED = a_summary(
    compared_steps=18, compared_seconds=4.5, straggler_seconds={"data": 1.5}, stragglers=((1, "data", 1.5, 4),),
    slowdown=1.5, backward_waiting=0.25,
)  # fmt: skip
TOLD = replace(COMPARED, findings=(Finding(cause="straggler", share=0.3, evidence="Slow", remedy="num_workers=2"),))
KNOWN = {"program": "/home/me/train.py", "command_line": "python train.py --lr 1e-4", "model": "Llama", "batch": 8}
LONG = steps(21, 22, slow=21, seconds=70.0, data_time=(69.0, 0.1), step_time=(71.5, 0.25))
EVALUATION = Span(kind="evaluation", step=22, start=80.0, seconds=160.0)
STALLS = [Entry(67.0, HUNG), Entry(79.0, LONG), Entry(140.0, replace(HUNG, step=22, stage="evaluation"))]
WINDOW = Window(
    first_step=1, last_step=10, steps=20, ranks=2, seconds=2.5, samples=100, tokens=None, useful_tokens=None
)
ON_CPU = replace(
    PROFILE, timeline="cpu", operations=PROFILE.operations[1:], flops=None, copies=(), sync_seconds={},
    class_seconds={f"class {place}": 0.1 for place in range(10)}, module_seconds=None, module_backward_seconds=None,
    exposed_communication_seconds=0.0, trace=None,
)  # fmt: skip


def straggling(summary):
    return page([*a_fit(0, summary=False, world_size=2), Entry(30.0, SLOW), Entry(31.0, summary)])


def account(**seconds):
    return of(a_run(), steps(1, 2), a_summary(wall_seconds=seconds))


def measured(excluded=(None,) * 20, **known):
    return of(a_run(), COUNT, steps(1, 20, excluded=excluded), a_summary(**known))


def beside(*blocks, **run):
    """A run of twenty steps beside another run."""
    other = gather([[Entry(0.0, a_run(**{"run_id": "b2"} | run)), *[Entry(1.0, block) for block in blocks]]])
    mine = [Entry(0.0, a_run(host="node7", model="Llama", command_line="train.py --lr 1")), Entry(1.0, steps(1, 20))]
    return payload(gather([mine]), other=other[0])


EXCLUDED = ("first", "counted", "counted", *[None] * 17)
LOST = steps(1, 3, step_time=(0.5, None, 0.5), excluded=(None, None, None))
PAGES = {
    "two ranks": (
        page(a_fit(0, **TWO), a_fit(1, **TWO, started_unix=1.0)),
        "verdict notes figures steps rate stages marks account peak memory use heat tables",
    ),
    "two attempts": (
        of(
            *(a_run(), steps(1, 50), a_summary(gc_seconds=50.0)),
            *(a_run(attempt=2, step=40), steps(41, 60), a_summary(attempt=2, gc_seconds=0.25)),
            t=10.0,
        ),
        "figures.run_time figures.gc",
    ),
    "a later attempt alone": (of(a_run(attempt=2, step=5000), steps(5001, 5100), t=10.0), "figures.run_time"),
    "a peak": (measured(), "peak how"),
    "a peak that is too low": (measured(peak_flops_per_second=1000.0), "peak"),
    "a short time": (account(startup=0.1, first_step=0.0, steps=0.3), "account"),
    "a negative time": (account(startup=1.0, steps=3.0, other=-4.0), "account"),
    "no time": (account(steps=0.0), "account"),
    "a restart": (page([*a_fit(0, summary=False), *a_fit(0, attempt=2, step=15)]), "marks"),
    "a straggler": (straggling(COMPARED), "marks tables.stragglers"),
    "a straggler with a finding": (straggling(TOLD), "tables.stragglers"),
    "no tensor cores": (page(a_fit(0)), "tables.products"),
    "no tensor cores on a device": (page(a_fit(0, timeline="device")), "tables.products"),
    "killed": (page(a_fit(0, summary=False)), "verdict account notes rate"),
    "killed while it hung": (hung(so_far(), more=[Entry(67.0, HUNG)]), "verdict notes tables.findings tables.stalls"),
    "a hang that the second rank logged": (hung(QUIET, so_far(), ranks=2), "verdict"),
    "killed after a stall": (hung(so_far(under_way=False)), "verdict"),
    "a stall without a summary": (
        page([*a_fit(0, summary=False), Entry(67.0, HUNG), Entry(80.0, Use(step=20))]), "verdict",
    ),
    "stalls of a step and an evaluation": (
        page([*a_fit(0, summary=False), *STALLS, Entry(240.0, EVALUATION)]), "tables.stalls",
    ),
    "missing ranks, another fit, another version": (
        page([*a_fit(0, run_id="old"), *a_fit(0, world_size=3, schema=SCHEMA + 1, started_unix=9e5)]), "notes",
    ),
    "an earlier fit": (page([*a_fit(0, run_id="old"), *a_fit(0, run_id="new", started_unix=9e5)], number=1), "title"),
    "a known program": (
        page(*[
            [Entry(0.0, a_run(rank=rank, world_size=2, host=f"node{rank}", parameters=7_000_000_000, **KNOWN))]
            for rank in range(2)
        ]),
        "title tables.environment",
    ),
    "parameters below zero": (of(a_run(parameters=-5)), "title"),
    "no step": (of(a_run()), "verdict steps rate stages marks"),
    "values that contradict each other": (
        page([
            *a_fit(0, summary=False),
            Entry(50.0, a_summary(included_seconds=0.0, findings=(), wall_seconds={"startup": 1.0, "other": 1.0})),
        ]),
        "verdict notes steps",
    ),
    "several devices": (of(a_run(devices=2), COUNT, steps(1, 20), a_summary()), "figures.mfu figures.tflops rate"),
    "a named peak": (measured(flops_source="counted", peak_source="https://maker"), "figures.mfu figures.tflops how"),
    "a peak that was set": (measured(peak_source="peak_tflops=bf16=4"), "figures.mfu"),
    "a peak that was measured": (measured(peak_source="measured on cpu", peak_measured=True), "figures.mfu"),
    "excluded steps": (measured(EXCLUDED), "figures.step_time"),
    "a step without a time": (of(a_run(), LOST), "figures.step_time"),
    "windows": (
        of(a_run(world_size=2), steps(1, 20), WINDOW, a_summary()),
        "figures.samples_per_second figures.tokens_per_second",
    ),
    "findings": (page(a_fit(0)), "how"),
    "a profile": (page([*a_fit(0), Entry(20.0, PROFILE)]), "profiles marks how.profile_time how.profile_classes"),
    "a profile of a CPU": (page([*a_fit(0), Entry(20.0, ON_CPU)]), "profiles"),
    "run B": (
        payload(gather([a_fit(0)]), other=gather([a_fit(0, run_id="b2")])[0]),
        "figures.step_time figures.tflops notes tables.comparison",
    ),
    "a slower run B": (beside(steps(11, 30, seconds=0.5), host="node7", model="Llama"), "steps other tables"),
    "run B elsewhere": (
        beside(steps(1, 20), host="node8", model="GPT", command_line="train.py --lr 2"), "notes tables",
    ),
    "run B on a device": (beside(steps(1, 20), model="Llama", timeline="device"), "tables.comparison"),
    "run B without steps": (beside(steps(1, 20, model_flops=(10**300,) * 20), world_size=3), "notes"),
}  # fmt: skip
"""By name: a page, and the parts of it that are compared."""


def test_pages_are_as_their_snapshot():
    shown = "".join(
        f"=== {name}\n" + "".join(f"{line}\n" for line in selected(found, parts.split()))
        for name, (found, parts) in PAGES.items()
    )
    assert matches(Path(__file__).with_name("outlines.txt"), shown)
