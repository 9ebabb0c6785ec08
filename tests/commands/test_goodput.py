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
        started=20.0,
        first=3,
        times=(1.0,) * 6,
        others=use,
        process_seconds=2.0,
        restore_seconds=1.5,
        ended=True,
        attempt=2,
        steps=steps,
        **changes,
    )
    return first, second


def test_text(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    write(tmp_path, *two_attempts())
    assert matches(PRINTED / "goodput.txt", told(capsys, tmp_path, "--price", "2.5"))


def test_steps_rolled_back_by_an_attempt_without_an_end_are_at_least_so_many(tmp_path, capsys):
    again = a_journal(started=20.0, first=3, times=(1.0,) * 6, attempt=2)
    for first, ended, least in (
        (a_journal(started=0.0, times=(1.0,) * 4), None, True),  # steps 5 to 14 were done, but not written
        (a_journal(started=0.0, times=(1.0,) * 4, ended="SystemExit"), False, False),
        (a_journal(started=0.0, times=(1.0,) * 4, ended=True), True, False),
    ):
        write(tmp_path, first, again)
        found, text = facts(capsys, tmp_path), told(capsys, tmp_path)
        assert (found["attempts"][0]["ended"], found["rolled_back_steps"]) == (ended, 2)
        assert found["rolled_back_is_lower_bound"] is least
        assert [f"{words}2 " in text for words in ("at least ", "≥ ")] == [least, least], text


def test_the_newest_job_is_shown_and_all_on_request(tmp_path, capsys):
    write(tmp_path / "old", a_journal(started=0.0, times=(1.0,) * 4))
    write(tmp_path / "new", a_journal(started=100.0, run_id="a2", times=(1.0,) * 2))
    assert main(["goodput", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["run_id"] == "a2"
    assert printed.err == f"{tmp_path}: the newest of 2 jobs. All runs as one job: --all\n"
    found = facts(capsys, tmp_path, "--all")
    assert (len(found["attempts"]), found["rolled_back_steps"], found["seconds"]["downtime"]) == (2, 4, 96.0)


JOB = {"job_id": "7", "command_line": "train.py"}


@pytest.mark.parametrize(
    ("before", "after", "joined"),
    [
        ({}, {}, True),
        ({"ended": "SystemExit"}, {}, True),
        ({"ended": True}, {}, False),
        ({}, {"job_id": "8"}, False),
        ({"job_id": None}, {"job_id": None}, False),
        ({}, {"command_line": "train.py --lr 1"}, False),
    ],
)
def test_a_restart_before_the_first_checkpoint_belongs_to_the_job(tmp_path, capsys, before, after, joined):
    first = a_journal(started=0.0, times=(1.0,) * 4, **JOB | before)
    second = a_journal(started=10.0, run_id="a2", times=(1.0,) * 4, **JOB | after)
    write(tmp_path, first, second)
    assert (len(facts(capsys, tmp_path)["attempts"]) == 2) is joined


def test_a_run_that_began_while_another_was_alive_is_no_restart(tmp_path, capsys):
    write(
        tmp_path,
        a_journal(started=0.0, times=(1.0,) * 100, **JOB),
        a_journal(started=1.0, run_id="a2", times=(1.0,) * 100, **JOB),
    )
    assert len(facts(capsys, tmp_path)["attempts"]) == 1


def test_the_newest_job_is_that_of_the_newest_attempt_wherever_it_lies(tmp_path, capsys):
    times = {"times": (1.0,) * 4, "process_seconds": 1.0}
    write(tmp_path / "run-9", a_journal(started=0.0, run_id="main", **times))
    write(tmp_path / "run-10", a_journal(started=1000.0, run_id="main", first=5, attempt=2, ended=True, **times, **JOB))
    write(tmp_path / "trial", a_journal(started=500.0, run_id="trial", **times))
    later = a_journal(started=2000.0, run_id="later", **times, **JOB)
    found = facts(capsys, tmp_path)
    assert (found["run_id"], len(found["attempts"])) == ("main", 2)
    write(tmp_path / "run-11", later)  # the job before had ended in order
    found = facts(capsys, tmp_path)
    assert (found["run_id"], len(found["attempts"])) == ("later", 1)


def test_the_summary_of_an_earlier_attempt_with_the_same_number_does_not_count(tmp_path, capsys):
    began = time.time() + 1000
    write_ranks(tmp_path, [Entry(0.0, a_run(started_unix=began))])
    interim.write(tmp_path / "perf_callbacks" / "rank0.jsonl", Entry(8.0, a_summary()))
    assert facts(capsys, tmp_path)["all_seconds"] == 0.0


def test_attempts_in_several_directories_are_a_single_job(tmp_path, capsys):
    first, second = two_attempts(world_size=2)
    write(tmp_path / "job1", first)
    write(tmp_path / "job2", second)
    write(tmp_path / "job2", a_journal(started=20.0, first=3, times=(9.0,) * 6, rank=1, world_size=2), rank=1)
    found = facts(capsys, tmp_path)
    assert [one["from_step"] for one in found["attempts"]] == [0, 2]
    assert found["device_hours"] == pytest.approx(2 * 29.0 / 3600)


def test_a_run_that_goes_on_lasts_until_its_summary_so_far(tmp_path, capsys):
    write_ranks(tmp_path, [Entry(0.0, a_run())])
    interim.write(tmp_path / "perf_callbacks" / "rank0.jsonl", Entry(8.0, a_summary()))
    assert facts(capsys, tmp_path)["all_seconds"] == 8.0


def test_impossible_values_and_missing_journals_are_told_in_a_sentence(tmp_path, capsys):
    assert main(["goodput", str(tmp_path)]) == 2
    assert main(["goodput", str(tmp_path / "gone")]) == 2
    write(
        tmp_path,
        a_journal(started=0.0, times=(1.0,)),
        a_journal(started=1e308, run_id="a1", attempt=2, world_size=10**18),
    )
    assert main(["goodput", str(tmp_path)]) in {0, 2}
    printed = capsys.readouterr()
    assert printed.err.count("perf-callbacks goodput: ") == len(printed.err.splitlines())


@pytest.mark.parametrize("price", ["-1", "free", "nan"])
def test_a_price_is_a_number(tmp_path, price):
    with pytest.raises(SystemExit):
        main(["goodput", str(tmp_path), "--price", price])
