"""Metrics of a run as text for Prometheus."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from rows import each_row
from watched import BEGAN, CASES, LASTS, ends, healthy, so_far

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.rank_records import Stall
from perf_callbacks.kernel.records.signs_of_life import Signs
from perf_callbacks.kernel.records.summary_parts import StallSummary
from perf_callbacks.report import prometheus
from perf_callbacks.report.rank_pace import Paces
from perf_callbacks.report.recorded_run import RecordedRun

LABEL = r'[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*"'
SAMPLE = re.compile(rf"(perf_callbacks_[a-z_]+)\{{({LABEL}(?:,{LABEL})*)\}} (\S+)")


def parsed(text):
    """The samples by name and labels. Each metric has HELP and TYPE before its samples, and samples differ."""
    samples, kinds, helped = {}, {}, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split()[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds
            kinds[name] = kind
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert name in helped
            assert name.endswith("_total") == (kinds[name] == "counter")
            assert (name, labels) not in samples
            samples[name, labels] = float(value)
    assert text.endswith("\n")
    return samples


def metrics(ranks, later=1.0):
    run = RecordedRun(tuple(ranks), BEGAN + LASTS + later)
    return parsed(prometheus.render(run, Paces().of(run)))


def value(samples, name, **labels):
    wanted = {f'{label}="{text}"' for label, text in {"run": "1f0c", **labels}.items()}
    found = [number for (key, text), number in samples.items() if key == f"perf_callbacks_{name}"
             and wanted <= {*text.split(",")}]  # fmt: skip
    assert len(found) <= 1
    return found[0] if found else None


def test_the_figures_of_each_rank():
    found = metrics(CASES["straggler"]())
    assert value(found, "up") == 1.0
    assert value(found, "step_time_seconds", rank="3") == 0.25
    assert value(found, "stage_time_seconds", rank="3", stage="data") == pytest.approx(0.15)
    assert value(found, "mfu_ratio", rank="0") == pytest.approx(0.4)
    assert value(found, "steps_total", rank="2") == 1000.0
    assert value(found, "stage_seconds_total", rank="0", stage="data") == 1.125
    assert value(found, "gc_seconds_total", rank="0") == 0.25
    assert value(found, "straggler_lost_seconds_total", cause="data") == 75.0
    assert value(found, "straggler_rank_lost_seconds", rank="3", cause="data") == 75.0
    assert value(found, "last_sign_of_life_timestamp_seconds", rank="1") == BEGAN + LASTS


def test_the_counters_of_another_attempt_are_other_series():
    before, after = metrics([ends()]), metrics([ends(attempt=2)])
    assert not before.keys() & after.keys()


def test_a_hang_counts_the_seconds_without_a_step():
    found = metrics(CASES["hang"]())
    assert value(found, "stall_seconds", rank="2") == 60.0
    assert value(found, "run_state", state="hangs") == 1.0
    assert value(found, "run_state", state="running") == 0.0


@pytest.mark.parametrize(("stalls", "seconds"), [(StallSummary(count=1, seconds=60.0), 0.0), (None, None)])
def test_a_stall_that_ended_without_a_step_counts_no_more(stalls, seconds):
    stall = Stall(step=1000, rank=0, stage="evaluation", since_seconds=60.0)
    found = metrics([ends(Entry(100.0, stall), so_far=so_far(stalls=stalls))])
    assert value(found, "run_state", state="running") == 1.0
    assert value(found, "stall_seconds", rank="0") == seconds


@pytest.mark.parametrize(("case", "state"), [("kill", "silent"), ("ended", "ended")])
def test_after_the_run_no_old_value_looks_new(case, state):
    found = metrics(CASES[case](), later=90.0)
    assert (value(found, "up"), value(found, "run_state", state=state)) == (0.0, 1.0)
    now = {f"perf_callbacks_{name}" for name in ("step_time_seconds", "stage_time_seconds", "stall_seconds")}
    names = Counter(name for name, _ in found)
    assert not now & {*names}
    assert names["perf_callbacks_steps_total"] == len(CASES[case]())


def test_a_rank_that_died_has_no_pace():
    ranks = CASES["straggler"]()
    ranks[1] = replace(ranks[1], signs=Signs(BEGAN + LASTS - 100.0, None))
    found = metrics(ranks)
    assert value(found, "up") == 1.0
    assert [value(found, "step_time_seconds", rank=str(rank)) for rank in range(4)] == [0.25, None, 0.25, 0.25]


def test_unknown_values_have_no_sample():
    found = metrics([ends()])
    assert value(found, "mfu_ratio", rank="0") is None
    assert value(found, "step_time_seconds", rank="0") == 0.25


EVIL = 'a"} 1\n# TYPE x gauge\\\x1b[2J\u202e'


def test_labels_are_escaped():
    summary = so_far(stage_seconds={EVIL: 1.0, EVIL.replace("\x1b", "\x1c"): 2.0}, run_id=EVIL)
    found = metrics([ends(so_far=summary, run_id=EVIL, program=EVIL, model=EVIL, host=EVIL, job_id=EVIL, device=EVIL)])
    assert all('run="a\\"} 1?# TYPE x gauge\\\\?[2J?"' in labels for _, labels in found)


@each_row("number", [float("nan"), float("inf"), -1.0, 1e300, 10**90])
def test_no_number_breaks_the_text(number):
    huge = int(number) if number == 10**90 else 7
    summary = so_far(included_seconds=number, step=huge, stage_seconds={"data_time": number}, tokens=huge)
    rank = ends(so_far=summary, wait=number if isinstance(number, float) else 1.0, started_unix=number)
    assert metrics([replace(rank, signs=Signs(BEGAN, None))])


def test_without_signs_of_life_the_run_is_not_up():
    assert value(metrics(healthy(), later=29.0), "up") == 1.0
    assert value(metrics(healthy(), later=31.0), "up") == 0.0
