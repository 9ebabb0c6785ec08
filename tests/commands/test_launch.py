"""`perf-callbacks launch`: accelerate gets its flags and a config that it understands, and each rank its settings."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import BaseConfig
from jobs import free_port

from perf_callbacks.commands import main
from perf_callbacks.commands.launch import RUN

REST = {"distributed_type": "NO", "num_processes": 1, "use_cpu": True, "fsdp_config": {"a": [1, None]}}
REST_TEXT = yaml.safe_dump(REST)
SECTION = "perf_callbacks:\n  window: 20\n  gc: observe\n  output_dir:\n"
TRAINING = """\
import os, signal, sys, time
from accelerate import PartialState
state = PartialState(cpu=True)
names = ["GC", "WINDOW", "SECTION"]
found = [os.environ.get(f"PERF_CALLBACKS_{name}") for name in names]
line = " ".join([str(state.process_index), str(sys.argv[1:]), *map(str, found)])
os.write(1, line.encode() + bytes([10]))  # whole, beside the other rank's
if sys.argv[1] == "wait":
    open("ready", "w").close()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
sys.exit(3 if sys.argv[1] == "fail" else 0)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("acc.yaml").write_text(REST_TEXT + SECTION)
    Path("train.py").write_text(TRAINING)
    return tmp_path


@pytest.fixture
def launched(monkeypatch, default):
    """What accelerate is asked to launch, with the environment of the ranks, and what it makes of the config."""
    environ = dict(os.environ)
    monkeypatch.setattr(os, "environ", environ)
    monkeypatch.setattr(BaseConfig, "process_config", BaseConfig.process_config)  # restored after the test

    def understood(path):
        content = yaml.safe_load(Path(path).read_text().replace("\t", " "))
        return {name: value for name, value in BaseConfig.process_config({**content}).items() if name in content}

    def run(*words):
        found = {}

        def launch(wanted):
            config = wanted.config_file or (str(default) if default.exists() and not wanted.cpu else None)
            found.update(
                script=wanted.training_script,
                words=wanted.training_script_args,
                module=bool(wanted.module),
                wanted=wanted,
                path=wanted.config_file,
                config=config and understood(config),
            )

        monkeypatch.setattr("accelerate.commands.launch.launch_command", launch)
        found["status"] = main(["launch", *words])
        found["environ"] = {name: environ[name] for name in environ if name.startswith("PERF_CALLBACKS")}
        return found

    return run


@pytest.fixture(autouse=True)
def default(monkeypatch, tmp_path):
    """No config of this machine plays a role."""
    path = tmp_path / "default_config.yaml"
    monkeypatch.setattr("accelerate.commands.config.default_config_file", str(path))
    return path


EXPORTS = {
    "PERF_CALLBACKS_WINDOW": "20",
    "PERF_CALLBACKS_GC": "observe",
    "PERF_CALLBACKS_OUTPUT_DIR": "",
    "PERF_CALLBACKS_SECTION": "window,gc,output_dir",
}


def test_accelerate_gets_the_rest_of_the_config_and_ranks_the_section(launched):
    found = launched("--config_file", "acc.yaml", "--num_processes", "1", "train.py", "a b", "--config_file", "-m")
    assert found["status"] == 0
    assert (found["script"], found["words"]) == (RUN, ["train.py", "a b", "--config_file", "-m"])
    assert found["module"]
    assert found["wanted"].num_processes == 1
    assert found["config"] == REST
    assert found["environ"] == EXPORTS
    assert found["path"] == "acc.yaml"
    assert Path("acc.yaml").read_text() == REST_TEXT + SECTION


def test_a_program_is_run_as_it_is(launched):
    found = launched("--config_file", "acc.yaml", "--no_python", "trl", "sft")
    assert (found["script"], found["words"]) == (sys.executable, ["-m", RUN, "trl", "sft"])
    assert found["wanted"].no_python
    assert not found["module"]


def test_the_environment_and_a_file_win_over_the_section(launched, monkeypatch, here):
    Path("perf.yaml").write_text("window: 5\n")
    os.environ.update({"PERF_CALLBACKS_CONFIG": "perf.yaml", "PERF_CALLBACKS_GC": "off"})
    found = launched("--config_file", "acc.yaml", "train.py")
    assert found["environ"] == {
        "PERF_CALLBACKS_CONFIG": f"{here}/perf.yaml",
        "PERF_CALLBACKS_GC": "off",
        "PERF_CALLBACKS_OUTPUT_DIR": "",
        "PERF_CALLBACKS_SECTION": "output_dir",
    }


def test_the_section_counts_in_a_default_config_accelerate_ignores(launched, default):
    default.write_text(Path("acc.yaml").read_text())
    found = launched("--cpu", "train.py")
    assert (found["path"], found["config"], found["environ"]) == (None, None, EXPORTS)


def test_without_a_section_accelerate_gets_the_users_own_file(launched):
    Path("acc.yaml").write_text(REST_TEXT)
    found = launched("--config_file", "acc.yaml", "train.py")
    assert (found["path"], found["script"]) == ("acc.yaml", RUN)
    assert launched("train.py")["path"] is None


def test_a_launch_that_is_turned_off_arms_nothing(launched):
    os.environ["PERF_CALLBACKS"] = "0"
    Path("acc.yaml").write_text(REST_TEXT + SECTION.replace("20", "many"))
    found = launched("--config_file", "acc.yaml", "train.py", "a")
    assert (found["script"], found["words"], found["config"]) == ("train.py", ["a"], REST)
    assert found["environ"] == {"PERF_CALLBACKS": "0"}


@pytest.mark.parametrize(
    "config", [{"distributed_type": "XLA"}, {"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "NO"}]
)
def test_a_launch_on_tpus_is_not_armed_and_says_so(launched, capsys, config):
    Path("acc.yaml").write_text(yaml.safe_dump(config) + SECTION)
    assert launched("--config_file", "acc.yaml", "train.py")["script"] == "train.py"
    sentence = "perf-callbacks launch: on TPUs and SageMaker, add the callback to the script yourself.\n"
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("config", "words", "sentence"),
    [
        (
            REST_TEXT + "perf_callbacks: {windwo: 20}",
            [],
            "acc.yaml, line 8: there is no field 'windwo'; did you mean window?",
        ),
        (
            REST_TEXT + "perf_callbacks: yes",
            [],
            "acc.yaml, line 8: perf_callbacks: got a scalar, wanted fields with values.",
        ),
        (
            REST_TEXT + "a: [",
            [],
            "acc.yaml, line 8 is not valid YAML: expected the node content, but found '<stream end>'.",
        ),
        (SECTION, [], "acc.yaml holds settings of perf_callbacks only: run `accelerate config` first."),
        (REST_TEXT + SECTION, ["trian.py"], "there is no file trian.py."),
        (REST_TEXT + SECTION, ["--config_file", "none.yaml", "train.py"], "none.yaml: there is no such file in HERE."),
    ],
)
def test_a_launch_that_makes_no_sense_is_refused_in_a_sentence(launched, capsys, config, words, sentence):
    Path("acc.yaml").write_text(config)
    found = launched("--config_file", "acc.yaml", *(words or ["train.py"]))
    assert (found["status"], "script" in found) == (2, False)
    assert found["environ"] == {} or not sentence.startswith("acc.yaml, line")
    assert capsys.readouterr().err == f"perf-callbacks launch: {sentence}\n".replace("HERE", str(Path.cwd()))


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_help_says_where_words_go(launched, capsys, words):
    assert launched(*words) == {"status": 0, "environ": {}}
    assert "[--config_file FILE] [flags of accelerate launch] SCRIPT [its arguments]" in capsys.readouterr().out


@pytest.fixture
def start(here):
    """Start `perf-callbacks launch` in a process of its own; its temporary files would lie in `temporary`."""
    (here / "temporary").mkdir()
    environ = {**os.environ, "TMPDIR": f"{here}/temporary", "ACCELERATE_USE_CPU": "true", "HF_HOME": f"{here}"}
    script = "import sys; from perf_callbacks.commands import main; sys.exit(main())"

    started = []

    def run(*words):
        command = [sys.executable, "-c", script, "launch", "--config_file", "acc.yaml", *words]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield run
    for process in started:
        with process:
            process.terminate()


@pytest.mark.slow
def test_two_ranks_get_the_settings_of_the_section(start, here):
    config = {"distributed_type": "MULTI_GPU", "num_processes": 2, "use_cpu": True}
    Path("acc.yaml").write_text(yaml.safe_dump(config) + SECTION)
    process = start("--main_process_port", str(free_port()), "train.py", "a b")
    printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert sorted(printed.splitlines()) == [f"{rank} ['a b'] observe 20 window,gc,output_dir" for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_launch_and_leaves_no_file(start, number):
    process = start("train.py", "wait")
    while not Path("ready").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    assert not [*Path("temporary").glob("perf_callbacks-*")]


@pytest.mark.slow
def test_a_script_that_fails_fails_the_launch_as_accelerate_does(start):
    process = start("train.py", "fail")
    printed, errors = process.communicate(timeout=120)
    assert (process.returncode, printed) == (1, "0 ['fail'] observe 20 window,gc,output_dir\n")
    assert "returned non-zero exit status 3" in errors
    assert not [*Path("temporary").iterdir()]
