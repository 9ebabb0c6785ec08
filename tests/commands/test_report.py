"""`perf-callbacks report` and `perf-callbacks trace`."""

import json

import pytest
from fakes import a_run
from journals import Outline, a_fit, steps, write

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry


@pytest.mark.parametrize(("command", "name"), [("report", "report.html"), ("trace", "trace.json")])
def test_the_file_lies_beside_the_journals_or_where_it_is_wanted(tmp_path, capsys, command, name):
    write(tmp_path, a_fit(0, world_size=2), a_fit(1, world_size=2))
    path = tmp_path / "perf_callbacks" / name
    assert main([command, str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert main([command, str(tmp_path / "perf_callbacks" / "rank1.jsonl"), "-o", str(tmp_path / "one")]) == 0
    assert sorted(file.name for file in path.parent.iterdir()) == sorted([name, "rank0.jsonl", "rank1.jsonl"])
    assert path.stat().st_size > (tmp_path / "one").stat().st_size > 0


@pytest.mark.parametrize("command", ["report", "trace"])
def test_a_printed_path_shows_no_control_character(tmp_path, capsys, command):
    directory = tmp_path / "a\x1b[2J"
    write(directory, a_fit(0))
    assert main([command, str(directory)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/a\\x1b[2J/")


def test_a_fit_and_its_steps_can_be_chosen(tmp_path):
    fits = [*a_fit(0, run_id="first"), Entry(0.0, a_run(run_id="second", started_unix=5.0)), Entry(1.0, steps(1, 9))]
    write(tmp_path, fits)
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--fit", "1", "--steps", "3-5", "-o", str(page)]) == 0
    content = json.loads(Outline(page.read_text()).data)
    assert (content["title"]["run"], content["steps"]["x"]) == ("first", [3, 4, 5])
    trace = tmp_path / "trace.json"
    assert main(["trace", str(tmp_path), "--steps", "3-5", "-o", str(trace)]) == 0
    found = json.loads(trace.read_text())
    assert found["otherData"]["run"] == "second"
    assert sum(event["name"] == "step" for event in found["traceEvents"]) == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere: No such file or directory"),
        (["."], "no journal in .: a run writes perf_callbacks/rank<k>.jsonl into its output directory"),
        (["empty.jsonl"], "empty.jsonl: no fit in the journal, which would begin with a `run` record."),
        (["out", "--fit", "2"], "fit: got 2, wanted 1 to 1, the number of the last fit."),
        (["out", "--fit", "-1"], "fit: got -1, wanted 1 to 1, the number of the last fit."),
        (["out", "--steps", "9-2"], "steps: got '9-2', wanted the first and the last one, such as 200-400."),
        (["out", "-o", "none/x"], "none/x: No such file or directory"),
    ],
)
def test_a_wrong_word_costs_a_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "out", a_fit(0))
    (tmp_path / "empty.jsonl").write_bytes(b"\x00\xff{]\n")
    for command in ("report", "trace"):
        assert main([command, *words]) == 2
        assert capsys.readouterr().err == f"perf-callbacks {command}: {sentence}\n"
