"""`perf-callbacks show`, by what it prints."""

import json
import os
import re
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path
from random import Random

import pytest
from fakes import a_run
from journals import Outline, a_fit, a_summary, write
from recorded import LASTS, NO_PROCESS, NOW, a_recorded, process, stand_still

from perf_callbacks.commands import main
from perf_callbacks.kernel.records import interim
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.fit_records import Finding, Run, Summary
from perf_callbacks.kernel.records.journal_file import LONGEST_LINE
from perf_callbacks.kernel.records.summary_parts import StallSummary


@pytest.fixture(autouse=True)
def still(monkeypatch):
    stand_still(monkeypatch)


def told(capsys, *words):
    assert main(["show", *map(str, words)]) == 0
    return capsys.readouterr()


@pytest.mark.parametrize("given", ["", "perf_callbacks", "perf_callbacks/rank0.jsonl"])
def test_the_directory_the_folder_or_the_journal_may_be_given(tmp_path, capsys, given):
    a_recorded(tmp_path)
    assert told(capsys, tmp_path / given).out.startswith("ended ")


def test_the_newest_run_is_shown_and_the_others_are_counted(tmp_path, capsys):
    for age in (900.0, 5.0, 90.0):
        a_recorded(tmp_path / f"old{age:.0f}", age=age, run_id=f"id{age:.0f}")
    printed = told(capsys, tmp_path)
    assert "run id5\n" in printed.out
    assert printed.err == f"{tmp_path}: the newest of 3 runs. All: perf-callbacks runs\n"
    printed = told(capsys, tmp_path, "--all")
    assert printed.out.index("run id5") < printed.out.index("run id90") < printed.out.index("run id900")
    assert printed.err == ""


def test_ranks_of_several_hosts_are_shown_together(tmp_path, capsys):
    a_recorded(tmp_path / "host0", ranks=4, run_id="a")
    a_recorded(tmp_path / "host1", ranks=4, run_id="a")
    for number in range(4):
        (tmp_path / f"host{1 - number // 2}/perf_callbacks/rank{number}.jsonl").unlink()
    printed = told(capsys, tmp_path)
    assert "Note" not in printed.out
    assert (printed.err, printed.out.count("4 ranks")) == ("", 1)
    assert "Note: ranks without a journal: 0, 1." in told(capsys, tmp_path / "host1").out
    assert "Note: ranks without a journal: 0, 1, 2." in told(capsys, tmp_path / "host1/perf_callbacks/rank3.jsonl").out


def test_json_has_the_state_the_run_and_the_summary_with_findings(tmp_path, capsys):
    so_far = replace(a_summary(), stalls=StallSummary(count=1, seconds=61.0, under_way=True))
    a_recorded(tmp_path, ended=False, so_far=so_far, ranks=2, hangs=True)
    found = json.loads(told(capsys, tmp_path, "--json").out)
    assert {name: found[name] for name in ("title", "state", "reason", "step", "pid")} == {
        "title": "train.py · Llama · on node7",
        "state": "hangs",
        "reason": None,
        "step": 20,
        "pid": None,
    }
    assert found["run"]["program"] == "jobs/train.py"
    assert [one["cause"] for one in found["summary"]["findings"]] == ["data"]
    assert found["mfu"] == pytest.approx(0.4)
    assert [one["state"] for one in json.loads(told(capsys, tmp_path, "--json", "--all").out)] == ["hangs"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't list processes in /proc")
def test_a_process_of_this_machine_decides_about_life(tmp_path, capsys):
    here, gone = process(os.getpid()), process(NO_PROCESS)
    began_later = {**here, "uptime_seconds": 0.0}  # this process has the id of the run's process, which is gone
    elsewhere = [{**gone, "boot_id": "b"}, {**gone, "pid_namespace": 1}, {**gone, "pid": None}, {**gone, "pid": -1}]
    expected = [(here, "hangs"), (gone, "silent"), (began_later, "silent"), *[(one, "hangs") for one in elsewhere]]
    for about, state in expected:
        a_recorded(tmp_path, ended=False, hangs=True, **about)
        shown = [told(capsys, tmp_path).out]
        for command in ("runs", "watch"):
            assert main([command, str(tmp_path)]) == 0
            shown.append(capsys.readouterr().out)
        assert json.loads(told(capsys, tmp_path, "--json").out)["state"] == state, about
        sentences = [" ".join(text.split()) for text in shown]
        expected_words = [(state == "hangs", state == "silent")] * 3
        assert [("Not killed" in text, " is gone: " in text) for text in sentences] == expected_words, about


UNREACHABLE = "ConnectionError: Couldn't reach 'allenai/c4' on the Hub (HTTPSConnectionPool)"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't list processes in /proc")
def test_a_job_whose_ranks_all_died_or_failed_does_not_run(tmp_path, capsys):
    about = {"started_unix": NOW - 5.0 - LASTS, "world_size": 2, "host": "node7"}
    dead = a_fit(0, summary=False, **about, **process(NO_PROCESS))
    victim, culprit, unreachable = [
        [*a_fit(1, summary=False, **about), Entry(LASTS, a_summary(failure=reason))]
        for reason in ("RuntimeError: Broken pipe", "ValueError: no", UNREACHABLE)
    ]
    early = "stopped early 5.00 s ago, after step 20 and 14.0 s: "
    for ranks, begins, words in (
        (
            (dead, victim),
            "no sign of life since 1970-01-24 03:33 UTC (5.00 s ago): process",
            "RuntimeError: Broken pipe",
        ),
        ((victim, dead), early, f"{early}rank 1: process {NO_PROCESS} is gone, killed or crashed. "),
        ((culprit, dead), early, f"{early}ValueError: no. "),
        ((unreachable, dead), early, f"{early}{UNREACHABLE}. "),
    ):
        journals = [
            [replace(one[0], record=replace(one[0].record, rank=rank)), *one[1:]] for rank, one in enumerate(ranks)
        ]
        write(tmp_path, *journals)
        for path in (tmp_path / "perf_callbacks").iterdir():
            os.utime(path, (NOW - 5.0, NOW - 5.0))
        shown = " ".join(told(capsys, tmp_path).out.split())
        assert shown.startswith(begins)
        assert words in shown
        os.utime(tmp_path / "perf_callbacks/rank1.jsonl", (NOW, NOW))  # it lived on, so it is a victim too
        assert ": process" not in told(capsys, tmp_path).out or ranks[0] is dead


def test_steps_and_a_stall_after_the_last_summary_win(tmp_path, capsys):
    early = {"steps": 0, "included_steps": 0, "included_seconds": 0.0, "stage_seconds": {}, "findings": ()}
    cases = [
        (a_summary(step=15, **early), "no step is in the summary on disk. The last steps took 250 ms each."),
        (a_summary(step=15), "so far, up to step 15. The last steps took 250 ms each."),
        (a_summary(step=20), "so far, up to step 20"),
    ]
    for summary, words in cases:
        shutil.rmtree(tmp_path / "perf_callbacks", ignore_errors=True)
        a_recorded(tmp_path, ended=False, hangs=True, so_far=summary)
        interim.write(tmp_path / "perf_callbacks/rank0.jsonl", Entry(LASTS - 1.0, summary))
        shown = " ".join(told(capsys, tmp_path).out.split())
        assert shown.endswith(words), summary
        assert "hangs for 61.0 s after step 20: rank 0 is in data" in shown
        assert main(["runs", str(tmp_path)]) == 0
        assert "hangs 20 250 ms" in " ".join(capsys.readouterr().out.split())
        assert main(["report", str(tmp_path)]) == 0
        page = Outline((tmp_path / "perf_callbacks/report.html").read_text()).data
        hangs = "The training hangs after step 20: rank 0 in data at loader.py:41 next, for 61.0 s."
        assert json.loads(page)["verdict"] == hangs
        assert "The summary here covers the first 13.0 s." in page
        capsys.readouterr()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't list processes in /proc")
def test_a_line_that_is_too_long_hides_only_itself(tmp_path, capsys):
    for letters in (2 * LONGEST_LINE, 4 * LONGEST_LINE + 9):
        a_recorded(tmp_path, ended=False, **process(NO_PROCESS))
        with (tmp_path / "perf_callbacks/rank0.jsonl").open("a") as file:
            file.write(encode(Entry(LASTS, a_summary(failure="x" * letters))) + "\n")
        shown = " ".join(told(capsys, tmp_path).out.split())
        assert f"process {NO_PROCESS} is gone" in shown
        assert ", at step 20 after 14.0 s." in shown
        assert "Note: lines of the journals that can't be read: 1." in shown


LOST, OUT_OF_MEMORY = "RuntimeError: Connection closed by peer [127.0.0.1]", "RuntimeError: DataLoader worker is killed"


def test_the_first_failure_heads_a_run_and_not_its_victims(tmp_path, capsys):
    cases = [  # host, seconds and reason of each rank, and the rank that failed first
        ([("a", 19.0, LOST), ("a", 15.0, OUT_OF_MEMORY)], 1),
        ([("a", 14.0, OUT_OF_MEMORY), ("a", 15.0, LOST)], 0),
        ([("a", 15.0, LOST), ("a", 19.0, OUT_OF_MEMORY)], 0),
        ([("a", 14.0, LOST), ("b", 99.0, OUT_OF_MEMORY)], 1),
        ([("a", 14.0, OUT_OF_MEMORY), ("b", 14.5, OUT_OF_MEMORY)], 0),
        ([("a", 14.0, LOST), ("b", 15.0, LOST), ("b", 14.5, OUT_OF_MEMORY)], 2),
        ([(None, 19.0, LOST), (None, 15.0, OUT_OF_MEMORY)], 1),
    ]
    for ranks, first in cases:
        about = {"started_unix": NOW - 120.0, "world_size": len(ranks)}
        ends = [Entry(seconds, a_summary(failure=reason)) for _, seconds, reason in ranks]
        fits = [a_fit(rank, summary=False, host=host, **about) for rank, (host, *_) in enumerate(ranks)]
        write(
            tmp_path,
            *[[*(replace(one, t=min(one.t, 10.0)) for one in fit), end] for fit, end in zip(fits, ends, strict=True)],
        )
        who = f"rank {first}: " if first else ""
        shown = [told(capsys, tmp_path).out]
        assert main(["watch", str(tmp_path)]) == 0
        shown.append(capsys.readouterr().out)
        for text in shown:
            head = " ".join(text.split()).partition(": ")[2]
            assert head.startswith(f"{who}{ranks[first][2]}."), ranks
        assert main(["report", str(tmp_path)]) == 0
        capsys.readouterr()
        page = (tmp_path / "perf_callbacks/report.html").read_text()
        assert f"Measuring stopped early: {who}{ranks[first][2]}." in page


def keys(value, name=""):
    """The keys of objects and of objects in lists, without those of records."""
    for key, one in value.items():
        yield name + key
        if isinstance(one, dict) and key not in {"run", "summary"}:
            yield from keys(one, f"{name}{key}.")
        if isinstance(one, list) and one and isinstance(one[0], dict):
            yield from keys(one[0], f"{name}{key}[].")


@pytest.mark.parametrize("ended", [True, False])
def test_the_documentation_lists_the_keys_of_the_json(tmp_path, capsys, ended):
    so_far = replace(a_summary(), stalls=StallSummary(count=1, seconds=61.0, under_way=True))
    a_recorded(tmp_path, ended=ended, so_far=None if ended else so_far, hangs=not ended)
    found = json.loads(told(capsys, tmp_path, "--json").out)
    page = (Path(__file__).parents[2] / "docs/looking.md").read_text(encoding="utf-8")
    section = page.split("## Which keys has the JSON?")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert [*keys(found)] == [name for name in listed if not (ended and name.startswith("stall."))]
    assert f"{found['schema']}: version of these keys" in section
    for record, kind in (("run", Run), ("summary", Summary)):
        assert [*found[record]] == [field.name for field in fields(kind)]


def test_a_damaged_summary_is_said_and_the_rest_is_shown(tmp_path, capsys):
    a_recorded(tmp_path, ended=False)
    (tmp_path / "perf_callbacks/summary0.json").write_text("{rubbish")
    os.utime(tmp_path / "perf_callbacks/summary0.json", (NOW - 5.0, NOW - 5.0))
    with (tmp_path / "perf_callbacks/rank0.jsonl").open("a") as file:
        file.write("rubbish\n")
    shown = " ".join(told(capsys, tmp_path).out.split())
    assert "Note: summary0.json can't be read, 1 of 1 such files." in shown
    assert "Note: lines of the journals that can't be read: 1." in shown
    assert "no summary on disk" in shown


EVIL = "a\x1b[2J\x1b]0;x\x07\u202eb\nended 1 s ago"


@pytest.mark.parametrize("ended", [True, False])
def test_no_control_character_of_a_record_is_printed(tmp_path, capsys, ended):
    finding = Finding(cause="data", share=0.5, evidence=EVIL, remedy=EVIL)
    summary = a_summary(findings=(finding,), failure=EVIL, stage_seconds={EVIL: 1.0}, run_id=EVIL)
    evil = dict.fromkeys(("program", "model", "host", "job_id", "device", "run_id"), EVIL)
    a_recorded(tmp_path, ended=False, so_far=None if ended else summary, **evil)
    if ended:
        journal = [Entry(0.0, a_run(**evil, started_unix=NOW - 20.0)), Entry(1.0, summary)]
        write(tmp_path, journal)
    for words in ([], ["--json"]):
        shown = told(capsys, tmp_path, *words).out
        assert main(["watch", str(tmp_path)]) == 0
        shown += capsys.readouterr().out
        assert not [letter for letter in shown.replace("\n", "") if not letter.isprintable()]
        assert not any(line.startswith("ended 1 s") for line in shown.splitlines()[1:])


@pytest.mark.parametrize("words", [[], ["--all"], ["--json"]])
@pytest.mark.parametrize("content", [None, "", "rubbish\n"])
def test_without_a_run_there_is_a_sentence(tmp_path, capsys, content, words):
    if content is not None:
        (tmp_path / "rank0.jsonl").write_text(content)
    assert main(["show", str(tmp_path), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("perf-callbacks show: ")
    assert main(["show", str(tmp_path / "gone"), *words]) == 2
    assert "gone" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(25))
def test_no_number_in_a_record_ends_a_command(tmp_path, capsys, seed):
    odd, number = Random(seed), re.compile(r"(?<=[:,\[])-?\d+(?:\.\d+)?(?=[,\]}])")
    so_far = replace(a_summary(), stalls=StallSummary(count=1, seconds=61.0, under_way=odd.random() < 0.5))
    a_recorded(tmp_path, ended=odd.random() < 0.5, so_far=so_far, ranks=2, hangs=True)

    def changed(found):
        return odd.choice(["0", "-1", "1e300", "-1e300", "1e-300", "9" * 90]) if odd.random() < 0.1 else found[0]

    for path in (tmp_path / "perf_callbacks").iterdir():
        first, *rest = path.read_text().splitlines()
        path.write_text("\n".join([first if odd.random() < 0.7 else number.sub(changed, first), *[
            number.sub(changed, line) for line in rest
        ]]) + "\n")  # fmt: skip
        os.utime(path, (NOW - 5.0, NOW - 5.0))
    prom = tmp_path / "run.prom"
    for command, *words in (["watch"], ["watch", "--once", "--textfile", str(prom)]):
        assert main([command, str(tmp_path), *words]) in {0, 2}
    for command in ("show", "runs"):
        assert main([command, str(tmp_path)]) in {0, 2}
        capsys.readouterr()
        if main([command, str(tmp_path), "--json"]) == 0:
            json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_a_card_begins_with_state_and_title(tmp_path, capsys):
    a_recorded(tmp_path, parameters=12_300_000, job_id="4711")
    lines = told(capsys, tmp_path).out.splitlines()
    assert lines[:3] == [
        "ended 5.00 s ago, after step 20 and 14.0 s.",
        "  train.py · Llama · on node7",
        "  12.3 M parameters · cpu · 1 process · job 4711",
    ]
    assert lines[lines.index("") + 1].startswith("perf_callbacks: Waiting for data took 25% of the run;")
    assert "  checklist: gc applied" in lines


def test_a_run_in_the_directory_goes_before_runs_below(tmp_path, capsys):
    a_recorded(tmp_path, age=900.0, run_id="here")
    a_recorded(tmp_path / "below", run_id="below")
    assert "run here" in " ".join(told(capsys, tmp_path).out.split())


def test_an_unreadable_rank_is_named_and_the_others_are_shown(tmp_path, capsys):
    a_recorded(tmp_path, ranks=2)
    (tmp_path / "perf_callbacks/rank1.jsonl").write_text("rubbish\n")
    printed = told(capsys, tmp_path)
    assert printed.out.startswith("ended ")
    assert "Note: ranks without a journal: 1." in printed.out
    assert printed.err.endswith("rank1.jsonl: no `run` record can be read\n")
