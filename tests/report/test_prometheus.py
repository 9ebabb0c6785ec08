"""Metrics of a run as text for Prometheus."""

import re
from dataclasses import replace
from pathlib import Path

from rows import each_row
from snapshots import matches
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
    return parsed(prometheus.render(run, Paces().current(run)))


DEAD = CASES["straggler"]()
DEAD[1] = replace(DEAD[1], signs=Signs(BEGAN + LASTS - 100.0, None))
STALL = Entry(100.0, Stall(step=1000, rank=0, stage="evaluation", since_seconds=60.0))
RUNS = {
    **{name: (case(), 90.0 if name in {"kill", "ended"} else 1.0) for name, case in CASES.items()},
    "a rank that died": (DEAD, 1.0),
    "a stall that ended without a step": (
        [ends(STALL, so_far=so_far(stalls=StallSummary(count=1, seconds=60.0)))],
        1.0,
    ),
    "a stall that was not counted": ([ends(STALL, so_far=so_far(stalls=None))], 1.0),
    "unknown values": ([ends()], 1.0),
    "signs of life": (healthy(), 29.0),
    "no signs of life": (healthy(), 31.0),
}
"""By name: the ranks of a run, and the seconds after its last record."""


def test_samples_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = ""
    for name, (ranks, later) in RUNS.items():
        samples = [
            f"{key.removeprefix('perf_callbacks_')} {labels} {number}"
            for (key, labels), number in metrics(ranks, later).items()
        ]
        shown += f"=== {name}\n" + "".join([f"{sample}\n" for sample in samples])
    assert matches(Path(__file__).with_name("samples.txt"), shown)


def test_the_counters_of_another_attempt_are_other_series():
    before, after = metrics([ends()]), metrics([ends(attempt=2)])
    assert not before.keys() & after.keys()


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
