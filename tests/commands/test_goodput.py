"""`perf-callbacks goodput`, by what it prints."""

import json
import time
from pathlib import Path

import pytest
from attempt_histories import a_journal
from fakes import a_run
from journals import a_summary, write as write_ranks
from snapshots import matches

from perf_callbacks.commands import main
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Span
from perf_callbacks.kernel.records.machine_records import Use

PRINTED = Path(__file__).with_name("printed")


def write(folder, *journals, rank=0):
    """Write the attempts of a rank to one journal."""
    directory = folder / "perf_callbacks"
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(encode(entry) + "\n" for journal in journals for entry in journal)
    (directory / f"rank{rank}.jsonl").write_text(text)
    return folder


def told(capsys, *words):
    assert main(["goodput", *map(str, words)]) == 0
    return capsys.readouterr().out


def facts(capsys, *words):
    return json.loads(told(capsys, *words, "--json"))


def two_attempts(**changes):
    others = [(Span(kind="checkpoint", step=4, start=4.0, seconds=2.0), 2.0), (Use(step=4, energy_joules=600.0), 0.0)]
    steps = {"tokens": (1000,) * 4, "data_time": (0.25,) * 4}
    first = a_journal(started=0.0, times=(1.0,) * 4, others=others, process_seconds=3.0, steps=steps, **changes)
    steps = {"tokens": (1000,) * 6, "data_time": (0.25,) * 6}
    use = [(Use(step=4, energy_joules=600.0), 0.0)]
    second = a_journal(
        started=20.0, first=3, times=(1.0,) * 6, others=use, process_seconds=2.0, restore_seconds=1.5, ended=True,
        attempt=2, steps=steps, **changes,
    )  # fmt: skip
    return first, second


JOB = {"job_id": "7", "command_line": "train.py"}
SHORT = {"times": (1.0,) * 4}
AGAIN = a_journal(started=20.0, first=3, times=(1.0,) * 6, attempt=2)
LONG = {"times": (1.0,) * 100} | JOB
PARTS = {"times": (1.0,) * 4, "process_seconds": 1.0}
RUN_9 = a_journal(started=0.0, run_id="main", **PARTS)
RUN_10 = a_journal(started=1000.0, run_id="main", first=5, attempt=2, ended=True, **PARTS, **JOB)
TRIAL = a_journal(started=500.0, run_id="trial", **PARTS)
RUN_11 = a_journal(started=2000.0, run_id="later", **PARTS, **JOB)
TWO, (FIRST, SECOND) = two_attempts(), two_attempts(world_size=2)
SLOW = a_journal(started=20.0, first=3, times=(9.0,) * 6, rank=1, world_size=2)


def restarted(before, after):
    """A run that begins where another one of the same job has died."""
    first = a_journal(started=0.0, **SHORT, **JOB | before)
    return {"": [first, a_journal(started=10.0, run_id="a2", **SHORT, **JOB | after)]}


CASES = {
    "two attempts": ({"": TWO}, ["--price 2.5", "--json"]),
    "an attempt without an end": ({"": [a_journal(started=0.0, **SHORT), AGAIN]}, ["", "--json"]),
    "an attempt that failed": ({"": [a_journal(started=0.0, ended="SystemExit", **SHORT), AGAIN]}, [""]),
    "an attempt that ended": ({"": [a_journal(started=0.0, ended=True, **SHORT), AGAIN]}, [""]),
    "two jobs": (
        {"old": [a_journal(started=0.0, **SHORT)], "new": [a_journal(started=100.0, run_id="a2", times=(1.0,) * 2)]},
        ["", "--all"],
    ),
    "a restart before the first checkpoint": (restarted({}, {}), [""]),
    "a restart after a failure": (restarted({"ended": "SystemExit"}, {}), [""]),
    "a restart after an end": (restarted({"ended": True}, {}), [""]),
    "another job": (restarted({}, {"job_id": "8"}), [""]),
    "no job": (restarted({"job_id": None}, {"job_id": None}), [""]),
    "another command line": (restarted({}, {"command_line": "train.py --lr 1"}), [""]),
    "runs at the same time": (
        {"": [a_journal(started=0.0, **LONG), a_journal(started=1.0, run_id="a2", **LONG)]}, [""],
    ),
    "a job in several directories": ({"run-9": [RUN_9], "run-10": [RUN_10], "trial": [TRIAL]}, [""]),
    "a later job": ({"run-9": [RUN_9], "run-10": [RUN_10], "trial": [TRIAL], "run-11": [RUN_11]}, ["", "--json"]),
    "ranks in several directories": ({"job1": [FIRST], "job2": [SECOND, SLOW]}, [""]),
}  # fmt: skip
"""By name: the journals of each directory, and the words of the command."""


def test_texts_are_as_their_snapshot(tmp_path, capsys, monkeypatch):
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = ""
    for name, (folders, lines) in CASES.items():
        for folder, journals in folders.items():
            for rank in {journal[0].record.rank for journal in journals}:
                write(tmp_path / name / folder, *[one for one in journals if one[0].record.rank == rank], rank=rank)
        for words in lines:
            assert main(["goodput", str(tmp_path / name), *words.split()]) == 0
            printed = capsys.readouterr()
            shown += f"=== {name} {words}\n{printed.out}{printed.err}\n".replace(f"{tmp_path}/", "")
    assert matches(PRINTED / "goodput.txt", shown)


def test_the_summary_of_an_earlier_attempt_with_the_same_number_does_not_count(tmp_path, capsys):
    began = time.time() + 1000
    write_ranks(tmp_path, [Entry(0.0, a_run(started_unix=began))])
    interim.write(tmp_path / "perf_callbacks" / "rank0.jsonl", Entry(8.0, a_summary()))
    assert facts(capsys, tmp_path)["all_seconds"] == 0.0


def test_a_run_that_goes_on_lasts_until_its_summary_so_far(tmp_path, capsys):
    write_ranks(tmp_path, [Entry(0.0, a_run())])
    interim.write(tmp_path / "perf_callbacks" / "rank0.jsonl", Entry(8.0, a_summary()))
    assert facts(capsys, tmp_path)["all_seconds"] == 8.0


def test_impossible_values_and_missing_journals_are_told_in_a_sentence(tmp_path, capsys):
    assert main(["goodput", str(tmp_path)]) == 2
    assert main(["goodput", str(tmp_path / "gone")]) == 2
    impossible = a_journal(started=1e308, run_id="a1", attempt=2, world_size=10**18)
    write(tmp_path, a_journal(started=0.0, times=(1.0,)), impossible)
    assert main(["goodput", str(tmp_path)]) in {0, 2}
    printed = capsys.readouterr()
    assert printed.err.count("perf-callbacks goodput: ") == len(printed.err.splitlines())


@pytest.mark.parametrize("price", ["-1", "free", "nan"])
def test_a_price_is_a_number(tmp_path, price):
    with pytest.raises(SystemExit):
        main(["goodput", str(tmp_path), "--price", price])
