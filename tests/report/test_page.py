"""The page of a report: its content as plain values, and as HTML."""

import json
import re
from dataclasses import replace

import pytest
from fakes import a_run
from journals import COUNT, FINDING, Outline, a_fit, a_summary, steps

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import SCHEMA, Finding, Span, Steps
from perf_callbacks.kernel.records.machine_records import Use
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.summary_parts import StallSummary
from perf_callbacks.report.history import gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload


def content(*journals, **options):
    return payload(gather(journals), **options)


def two_ranks():
    device = {"world_size": 2, "timeline": "device", "tensor_cores": True}
    return [a_fit(0, **device), a_fit(1, **device, started_unix=1.0)]


def test_the_page_opens_with_the_verdict_and_the_figures():
    found = content(*two_ranks())
    assert found["verdict"] == "Waiting for data took 25% of the run; try DataLoader(num_workers=2). Up to 1.3x faster."
    assert [(one["name"], one["value"]) for one in found["figures"]] == [
        ("step time", "276 ms"),
        ("MFU", "≥ 36.2%"),
        ("kFLOPS", "≥ 1.45"),
        ("tokens/s", "128"),
        ("samples/s", "16.0"),
        ("garbage collection", "250 ms"),
        ("run time", "13.0 s"),
    ]
    assert found["figures"][1]["note"].endswith("; a lower bound: some work is uncounted")
    assert found["notes"] == []


def test_steps_done_are_those_of_all_attempts_and_collections_name_theirs():
    def figures(*records):
        found = content([Entry(10.0, record) for record in records])["figures"]
        return {one["name"]: (one["value"], one["note"]) for one in found}

    first = [a_run(), steps(1, 50), a_summary(gc_seconds=50.0)]
    second = [a_run(attempt=2, step=40), steps(41, 60), a_summary(attempt=2, gc_seconds=0.25)]
    found = figures(*first, *second)
    assert found["run time"] == ("20.0 s", "60 steps done in 2 attempts, 10 of them repeated after restarts")
    assert found["garbage collection"] == ("250 ms", "4 collections, longest 125 ms, in attempt 2")
    assert figures(a_run(attempt=2, step=5000), steps(5001, 5100))["run time"] == ("10.0 s", "100 steps done")


def test_each_chart_has_a_text_and_columns_of_one_length():
    found = content(*two_ranks())
    points = len(found["steps"]["x"])
    assert points == 20
    assert {len(found[chart][name]) for chart in ("steps", "rate") for name in ("least", "mean", "most")} == {points}
    assert {len(values) for values in found["stages"]["shares"]} == {points}
    assert found["steps"]["text"] == (
        "Step time over 20 steps: 276 ms on average, 250 ms to 719 ms for the mean of a point. "
        "The slowest step is 12 on rank 1 with 1.19 s."
    )
    assert found["stages"]["names"] == ["data", "forward", "backward"]
    texts = [found[name]["text"] for name in ("rate", "stages", "marks", "account", "peak", "memory", "heat")]
    assert all(texts)
    assert [chart["title"] for chart in found["use"]] == ["Load", "Memory"]
    assert found["memory"]["text"] == (
        "8.00 GB at its peak; each part at its largest: weights 2.00 GB, gradients 1.00 GB, activations 5.00 GB."
    )


@pytest.mark.parametrize(
    ("peak", "text", "shares"),
    [
        (4000.0, "MFU) 40.0%, recomputation 10.0%, unused 50.0%.", [0.4, 0.1, 0.5]),
        (1000.0, "MFU) 160.0%, recomputation 40.0%, unused 0.0%.", [0.8, 0.2, 0.0]),  # of a peak that is too low
    ],
)
def test_the_peak_is_divided_into_what_was_used_and_what_was_not(peak, text, shares):
    found = content(
        [Entry(0.0, record) for record in (a_run(), COUNT, steps(1, 20), a_summary(peak_flops_per_second=peak))]
    )
    assert found["peak"]["text"].partition("(")[2] == text
    assert [part["share"] for part in found["peak"]["parts"]] == shares


def test_the_wall_time_is_divided_however_short_it_was():
    def account(**seconds):
        return content([Entry(0.0, record) for record in (a_run(), steps(1, 2), a_summary(wall_seconds=seconds))])[
            "account"
        ]

    found = account(startup=0.1, first_step=0.0, steps=0.3)
    assert found["text"] == "400 ms in all, on rank 0: startup 100 ms, steps 300 ms."
    assert [part["share"] for part in found["parts"]] == [0.25, 0.75]
    assert account() is account(steps=0.0) is None
    assert [one["share"] for one in account(startup=1.0, steps=3.0, other=-4.0)["parts"]] == [0.25, 0.75]


def test_what_happened_is_marked_in_lanes():
    restarted = [*a_fit(0, summary=False), *a_fit(0, attempt=2, step=15)]
    found = content(restarted)["marks"]
    assert found["lanes"] == ["evaluation", "restart", "FLOP count", "collection", "stall"]
    assert [15, 1, "attempt 2 from step 15, 5 steps repeated"] in found["marks"]
    assert [4, 3, "garbage collection 125 ms, generation 2, rank 0, automatic"] in found["marks"]
    assert [15, 4, "rank 0 in data for 61.0 s"] in found["marks"]


def test_the_tables_say_what_was_found_counted_and_changed():
    tables = content(*two_ranks())["tables"]
    assert [*tables] == [
        "findings",
        "worst",
        "ranks",
        "phases",
        "modules",
        "products",
        "uncounted",
        "checklist",
        "stalls",
        "environment",
    ]
    assert tables["findings"]["rows"][0][1:] == (
        "25%",
        "Waiting for data took 25% of the run",
        "DataLoader(num_workers=2)",
    )
    assert tables["worst"]["rows"][0][:5] == ("12", "1.19 s", "4.75x", "1", "data +938 ms")
    assert tables["modules"]["rows"] == [
        ("lm_head", "1", "300", "60.0%", "0", "1.02 kB"),
        ("layers.*.mlp", "2", "200", "40.0%", "8", "—"),
        ("(no module)", "—", "0", "0.0%", "0", "—"),
    ]
    assert tables["products"]["rows"][0][-1] == "50,257 is no multiple of 8; 50,304 is"
    assert tables["products"]["rows"][1] == ["mm", "[8, 64] x [64, 64]", "bfloat16", "100", "20.0%", "fits"]
    assert tables["uncounted"]["rows"] == [("not counted", "mine::product", "3 calls")]
    assert tables["uncounted"]["note"].endswith("FLOPs and MFU are lower bounds.")
    assert tables["checklist"]["rows"][0][:3] == ("gc", "applied", "automatic → every 100 steps")
    assert tables["stalls"]["rows"][0] == ("15", "0", "data", "61.0 s", "loader.py:41 next")


def test_stragglers_are_marked_and_tabulated_with_what_they_cost():
    slow = Straggler(step=18, rank=1, cause="data", seconds_lost=1.5, steps=4)
    summary = a_summary(
        compared_steps=18,
        compared_seconds=4.5,
        straggler_seconds={"data": 1.5},
        stragglers=((1, "data", 1.5, 4),),
        slowdown=1.5,
        backward_waiting=0.25,
    )
    found = content([*a_fit(0, summary=False, world_size=2), Entry(30.0, slow), Entry(31.0, summary)])
    lane = found["marks"]["lanes"].index("straggler")
    assert [18, lane, "rank 1 cost 1.50 s in 4 steps: waiting for data"] in found["marks"]["marks"]
    table = found["tables"]["stragglers"]
    assert table["rows"] == [
        ("1", "waiting for data", "1.50 s", "4", "more loader workers, or data nearer to the rank")
    ]
    remedy = "DataLoader(num_workers=2)"
    told = replace(summary, findings=(Finding(cause="straggler", share=0.3, evidence="Slow", remedy=remedy),))
    found = content([*a_fit(0, summary=False, world_size=2), Entry(30.0, slow), Entry(31.0, told)])
    assert found["tables"]["stragglers"]["rows"][0][-1] == remedy
    assert table["note"].startswith(
        "In 18 compared steps, 4.50 s in all. A step takes 1.50 times as long as with healthy ranks"
    )


def test_of_many_ranks_those_that_exceed_the_others_most_are_tabulated():
    ranks = 60
    slow = steps(1, 5, data_time=(0.5,) * 5)
    found = content(
        *[
            [Entry(0.0, a_run(rank=rank, world_size=ranks)), Entry(1.0, slow if rank == 57 else steps(1, 5))]
            for rank in range(ranks)
        ]
    )["tables"]["ranks"]
    assert [row[0] for row in found["rows"][:3]] == ["57", "0", "1"]
    assert len(found["rows"]) == 50
    assert found["note"] == "The ranks that exceed the median most outside of backward; 10 are not shown."


@pytest.mark.parametrize("timeline", ["host", "device"])
def test_without_tensor_cores_there_is_no_shape_advice(timeline):
    products = content(a_fit(0, timeline=timeline))["tables"]["products"]
    assert [name for name, _ in products["columns"]][-1] == "share"


def test_a_run_that_was_killed_still_has_a_page():
    found = content(a_fit(0, summary=False))
    assert found["verdict"].startswith("250 ms per step, of which backward took 50%")
    assert found["account"] is None
    assert found["notes"] == ["Rank 0 wrote no summary at its end: the run was killed, or is still going on."]
    assert found["rate"]["unit"] == "TFLOPS"


HUNG = Stall(step=20, rank=0, stage="data", since_seconds=60.0, stack=("train.py:3 main", "loader.py:41 next"))
HANG = "The training hangs: no step has ended for 104 s after step 20, 94% of the run. Rank 0 is in data: loader.py:41"


def so_far(*, under_way=True):
    """The summary so far of a run that hangs, at second 111."""
    share = 104 / 111 if under_way else 0.004
    stall = Finding(cause="stall", share=share, evidence=HANG, remedy="`perf-callbacks report`")
    stalls = StallSummary(count=1, seconds=104.0, under_way=under_way, where="The training is in data")
    found = a_summary(findings=(stall, FINDING) if under_way else (FINDING, stall))
    return Entry(111.0, replace(found, stalls=stalls))


def test_the_page_of_a_run_that_was_killed_while_it_hung_opens_with_the_hang():
    journal = [*a_fit(0, summary=False), Entry(67.0, HUNG)]
    (fit,) = gather([journal], [lambda run: so_far()])
    found = payload([fit])
    assert found["verdict"] == f"{HANG}; see `perf-callbacks report`."
    assert [row[0] for row in found["tables"]["findings"]["rows"]] == ["stall", "data"]
    (note,) = found["notes"]
    assert note.endswith("was killed, or is still going on. The summary here covers the first 111 s.")
    assert [row[3] for row in found["tables"]["stalls"]["rows"] if row[0] == "20"] == ["104 s"]
    assert fit.summary == so_far().record


def test_a_run_that_went_on_after_the_summary_so_far_does_not_hang():
    earlier = so_far()
    earlier = Entry(earlier.t, replace(earlier.record, step=12))  # the journal has later steps
    (fit,) = gather([a_fit(0, summary=False)], [lambda run: earlier])
    assert fit.hang is None


def test_the_rank_that_logged_the_hang_tells_of_it():
    quiet = replace(so_far().record, findings=(FINDING,), stalls=StallSummary(count=1, seconds=9.0, under_way=True))
    journals = [a_fit(rank, summary=False, world_size=2) for rank in range(2)]
    (fit,) = gather(journals, [lambda run: Entry(111.0, quiet), lambda run: so_far()])
    assert payload([fit])["verdict"].startswith(HANG)


def test_the_page_of_a_run_that_was_killed_after_a_stall_opens_with_the_largest_share():
    (fit,) = gather([a_fit(0, summary=False)], [lambda run: so_far(under_way=False)])
    assert payload([fit])["verdict"].startswith("Waiting for data took 25%")


def test_a_summary_at_the_end_counts_more_than_one_so_far():
    (fit,) = gather([a_fit(0)], [lambda run: so_far()])
    assert (fit.hang, fit.summary) == (None, a_summary())


def test_without_any_summary_the_page_opens_with_the_last_stall():
    found = content([*a_fit(0, summary=False), Entry(67.0, HUNG), Entry(80.0, Use(step=20))])
    assert found["verdict"] == ("The training hangs after step 20: rank 0 in data at loader.py:41 next, for 73.0 s.")


def test_a_stall_has_the_seconds_of_its_step_or_its_evaluation():
    long = steps(21, 22, slow=21, seconds=70.0, data_time=(69.0, 0.1), step_time=(71.5, 0.25))
    evaluation = replace(HUNG, step=22, stage="evaluation")
    journal = [
        *a_fit(0, summary=False),
        Entry(67.0, HUNG),
        Entry(79.0, long),
        Entry(140.0, evaluation),
        Entry(240.0, Span(kind="evaluation", step=22, start=80.0, seconds=160.0)),
    ]
    rows = content(journal)["tables"]["stalls"]["rows"]
    assert [row[3] for row in rows] == ["61.0 s", "71.5 s", "160 s"]


def test_missing_ranks_other_fits_and_newer_journals_are_said():
    found = content([*a_fit(0, run_id="old"), *a_fit(0, world_size=3, schema=SCHEMA + 1, started_unix=9e5)])
    assert found["notes"] == [
        "These journals hold 2 fits, and this is number 2. To show another fit: --fit NUMBER.",
        "Ranks without a journal here: 1, 2, of 3. No figure on this page includes them.",
        f"Another version wrote the journal (schema {SCHEMA + 1}, not {SCHEMA}). Records that differ are not shown.",
    ]
    assert (
        content([*a_fit(0, run_id="old"), *a_fit(0, run_id="new", started_unix=9e5)], number=1)["title"]["run"] == "old"
    )


def test_the_page_is_named_after_program_model_and_host():
    known = {"program": "/home/me/train.py", "model": "Llama", "host": "node7"}
    assert content([Entry(0.0, a_run(**known))])["title"]["name"] == "train.py · Llama · on node7"


def test_command_line_host_and_model_stand_below_the_title():
    known = {"command_line": "python train.py --lr 1e-4", "model": "Llama", "parameters": 7_000_000_000, "batch": 8}
    journals = [[Entry(0.0, a_run(rank=rank, world_size=2, host=f"node{rank}", **known))] for rank in range(2)]
    found = content(*journals)
    assert found["title"]["command"] == "python train.py --lr 1e-4"
    facts = dict(found["title"]["facts"])
    assert facts["model"] == "Llama, 7.00 G parameters"
    assert facts["host"] == "node0, node1"
    assert (facts["ranks"], facts["batch"], facts["timed by"]) == ("2", "8 samples per rank", "host clock")
    rows = {row[0]: row[1] for row in found["tables"]["environment"]["rows"]}
    assert (rows["command line"], rows["parameters"]) == ("python train.py --lr 1e-4", "7,000,000,000")
    assert dict(content([Entry(0.0, a_run(parameters=-5))])["title"]["facts"]).get("model") is None


def test_an_empty_fit_has_a_page_that_says_so():
    found = content([Entry(0.0, a_run())])
    assert found["verdict"] == "No step was measured."
    assert found["steps"] is found["rate"] is found["stages"] is found["marks"] is None
    assert "perf_callbacks report" in render(found)


def test_values_that_contradict_each_other_cost_their_part_alone():
    broken = a_summary(included_seconds=0.0, findings=(), wall_seconds={"startup": 1.0, "other": 1.0})
    found = content([*a_fit(0, summary=False), Entry(50.0, broken)])
    assert "The verdict: not shown, because values in the journal contradict each other." in found["notes"]
    assert found["steps"] is not None


def test_a_journal_can_put_no_element_into_the_page():
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    journal = [
        Entry(0.0, a_run(run_id=evil, device=evil, versions={evil: evil}, config={evil: evil})),
        Entry(1.0, replace(COUNT, uncounted={evil: 1}, products=((evil, evil, evil, 1),))),
        Entry(2.0, a_summary(findings=(), failure=evil, flops_unknown=evil)),
    ]
    plain, hostile = (Outline(render(content(one))) for one in (a_fit(0), journal))
    assert hostile.tags == plain.tags
    assert json.loads(hostile.data)["title"]["run"] == evil


def test_a_journal_can_turn_no_letters_round():
    page = render(content([Entry(0.0, a_run(host="node\u202e7\x1b[31m"))]))
    assert dict(json.loads(Outline(page).data)["title"]["facts"])["host"] == "node?7?[31m"


def test_the_page_asks_for_nothing_and_runs_its_own_scripts_alone():
    page = render(content(*two_ranks()))
    assert Outline(page).links == ["data:,"]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; img-src data:; script-src 'sha256-")
    assert len(re.findall(r"'sha256-[^']{44}'", policy)) == 6
    assert "innerHTML" not in page.replace("uPlot", "")[page.index("function el(") :]
    assert "{{" not in page.split('id="data"')[0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_steps_make_a_page(count):
    one = Steps(step=tuple(range(1, count + 1)), step_time=(0.5,) * count)
    found = content([Entry(0.0, a_run()), Entry(1.0, one)])
    assert found["verdict"] == "500 ms per step. The stages of a step are unknown."
    render(found)
