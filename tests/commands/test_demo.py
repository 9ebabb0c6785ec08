"""`perf-callbacks demo`, with runs that are written by hand, and once as it is."""

import json
import os

import journals
import pytest
from jobs import python

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.kernel.records.summary_parts import CpuSummary
from perf_callbacks.launch.demo import two_runs

SLOW_RANK = Finding(
    cause="straggler", share=0.5, evidence="The job waited", remedy="caching prepared samples, or cheaper transforms"
)


class Runs:
    """Journals in place of the runs, with the options of each run."""

    def __init__(self, *findings, no_cpu=0.0, status=0):
        self.findings, self.no_cpu, self.status = findings, no_cpu, status
        self.options = []

    def __call__(self, directory, options, stopped, output=None):
        self.options.append([*options])
        first = len(self.options) == 1
        summary = journals.a_summary(
            findings=self.findings if first else (),
            included_seconds=4.5 if first else 3.0,
            cpu=CpuSummary(no_cpu_share=self.no_cpu),
        )
        fit = [*journals.a_fit(summary=False), Entry(99.0, summary)]
        journals.write(directory / options[options.index("--out") + 1], fit)
        return self.status


@pytest.fixture
def demo(monkeypatch, tmp_path, capsys):
    """Run the command with these runs; return the exit status, the printed text in one line, and the complaints."""
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: str(tmp_path))
    monkeypatch.setattr("perf_callbacks.kernel.process.processes.allowed_cpus", lambda: 2)

    def run(runs, *words):
        monkeypatch.setattr(two_runs, "start", runs)
        status = main(["demo", *words])
        printed = capsys.readouterr()
        return status, printed.out if "--json" in words else " ".join(printed.out.split()), printed.err

    return run


def test_the_same_steps_follow_with_the_remedy(demo, tmp_path):
    runs = Runs(journals.FINDING)
    status, told, _ = demo(runs)
    assert status == 0
    assert runs.options == [
        ["--seconds", "24", "--out", "as_it_is"],
        ["--workers", "2", "--steps", "20", "--out", "with_remedy"],
    ]
    assert "$ python train.py --workers 2 --steps 20 --out with_remedy" in told
    assert "A step took 250 ms, and 167 ms with the remedy: 1.50x faster. Promised: up to 1.3x faster." in told
    assert f"The fault: {two_runs.ONE_RANK}" in told
    assert (tmp_path / "train.py").read_text() == two_runs.PROGRAM.read_text()
    assert f"{tmp_path}/report.html" in told.replace(" ", "")
    assert (tmp_path / "report.html").is_file()


def test_the_last_of_several_ranks_is_slow_until_its_samples_are_ready_too(demo):
    runs = Runs(SLOW_RANK)
    status, told, _ = demo(runs, "--ranks", "2", "--seconds", "12")
    assert status == 0
    assert runs.options == [
        ["--ranks", "2", "--prepared", "0", "--seconds", "12", "--out", "as_it_is"],
        ["--ranks", "2", "--prepared", "0", "1", "--steps", "20", "--out", "with_remedy"],
    ]
    assert "the samples of rank 1 were not tokenized" in told


@pytest.mark.parametrize(
    ("remedy", "options"),
    [
        ("DataLoader(num_workers=4)", ["--workers", "4"]),
        ("more loader workers, or data nearer to the rank", ["--workers", "1"]),
        ("caching prepared samples, or cheaper transforms", ["--prepared", "0", "1"]),
        ("samples that take equally long to load", []),
    ],
)
def test_each_remedy_has_its_options(remedy, options):
    assert two_runs.options_of(remedy, 2) == options


def interrupted(*_, **__):
    raise two_runs.StoppedError


NO_CPU = Finding(cause="cpu", share=0.3, evidence="The training thread had no CPU", remedy="more CPUs")
ODD = Finding(cause="data", share=0.5, evidence="Waiting", remedy="faster disks")


@pytest.mark.parametrize(
    ("runs", "status", "sentence"),
    [
        (Runs(), 1, "doesn't name the hidden fault: see its card above. The fault: train.py tokenizes"),
        (Runs(no_cpu=0.5), 1, "the hidden fault: the training had no CPU for long."),
        (Runs(NO_CPU, journals.FINDING, no_cpu=0.3), 0, "The verdict names another cause first."),
        (Runs(ODD), 1, "The demo can't apply this remedy: faster disks."),
        (lambda *_, **__: 0, 1, "The training left no summary in"),
        (Runs(status=3), 1, "status 3"),
        (interrupted, 130, "Interrupted. "),
    ],
    ids=["unnamed", "busy", "another cause", "no option", "no journal", "failed", "interrupted"],
)
def test_the_demo_says_how_it_ended(demo, runs, status, sentence):
    ended, printed, _ = demo(runs)
    assert (ended, sentence in printed) == (status, True), printed


@pytest.mark.verdict_after_ten_seconds
def test_a_second_run_without_a_verdict_is_explained(demo):
    assert "less than ten seconds, which is too short for a verdict" in demo(Runs(journals.FINDING))[1]


def test_json_has_the_result_and_stdout_nothing_else(demo):
    status, printed, told = demo(Runs(journals.FINDING), "--json")
    found = json.loads(printed)
    assert status == 0
    assert (found["schema"], found["ranks"], found["cpus"]) == (1, 1, 2)
    assert found["gain"] == pytest.approx(1.5)
    assert found["promised_share"] == [None, 0.25]
    assert [one["steps"] for one in found["runs"]] == [20, 20]
    assert found["remedy"] == "DataLoader(num_workers=2)"
    assert "$ python train.py" in told


@pytest.mark.parametrize("words", [["--ranks", "0"], ["--ranks", "9"], ["--seconds", "10"], ["--seconds", "nan"]])
def test_settings_that_make_no_sense_are_refused(words, capsys):
    assert main(["demo", *words]) == 2
    assert f"{words[0]}: got {words[1]}, wanted " in capsys.readouterr().err


def program(directory, source):
    (directory / two_runs.PROGRAM.name).write_text(source)


def test_settings_of_the_user_and_of_a_job_do_not_reach_the_training(monkeypatch, tmp_path):
    monkeypatch.setenv("PERF_CALLBACKS_JOURNAL", "false")
    monkeypatch.setenv("RANK", "3")
    program(tmp_path, "import os, sys\nopen('names', 'w').write(' '.join(os.environ))\nsys.exit(7)\n")
    assert two_runs.start(tmp_path, [], bool) == 7
    names = (tmp_path / "names").read_text().split()
    assert "XDG_CACHE_HOME" in names
    assert not {"PERF_CALLBACKS_JOURNAL", "RANK"} & {*names}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups, by which the test stops the demo")
@pytest.mark.parametrize("deaf", [False, True])
def test_no_process_of_the_training_outlives_an_interrupt(tmp_path, monkeypatch, deaf):
    monkeypatch.setattr(two_runs, "PATIENCE_SECONDS", 0.1)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else ""
    program(
        tmp_path,
        f"import signal, subprocess, sys, time\n{ignore}"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('ready', 'w').close()\ntime.sleep(600)\n",
    )
    reader, writer = os.pipe()
    with pytest.raises(two_runs.StoppedError):
        two_runs.start(tmp_path, [], (tmp_path / "ready").exists, output=writer)
    os.close(writer)
    assert os.read(reader, 1) == b""  # every process that could write is gone
    os.close(reader)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("words", [[], ["--ranks", "2"]])
def test_the_demo_names_its_fault_and_measures_the_remedy(tmp_path, words):
    status, told = python("-m", "perf_callbacks", "demo", "--seconds", "12", *words, TMPDIR=str(tmp_path))
    assert status == 0, told
    assert "`Snippets.encode`" in told
    assert "A step took" in told
    assert [*tmp_path.glob("perf-callbacks-demo-*/report.html")]
