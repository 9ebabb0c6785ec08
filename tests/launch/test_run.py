"""`perf-callbacks run`: a program notices nothing of it."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rows import each_row

import perf_callbacks
from perf_callbacks import commands
from perf_callbacks.launch import autoload, run

SOURCE = str(Path(perf_callbacks.__file__).parents[1])
RUN = ("-m", "perf_callbacks.run")

MAIN = "from perf_callbacks.launch import run; sys.exit(run.main(sys.argv[1:]))"

TELLING = """
import os, sys
print(sys.argv, sys.path, __name__, __file__, __spec__ and __spec__.name, __package__)
"""
PICKLED = """
import multiprocessing, pickle, sys
class Thing:
    pass
def double(number):
    return 2 * number, __name__, [finder for finder in sys.meta_path if "perf_callbacks" in str(finder)] != []
if __name__ == "__main__":
    print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, sys.modules["__main__"].Thing is Thing)
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print([pair[:2] for pair in pool.map(double, [1, 2])])
"""
PROGRAMS = {
    "arguments with spaces": (TELLING, ["a b", "", "--flag=ü", "-m", "--"]),
    "an exit code": ("import sys; sys.exit(3)", []),
    "an exit with a message": ("import sys; sys.exit('no data')", []),
    "an exception": ("def f():\n    raise ValueError('no')\nf()", []),
    "an exception at an import": ("import perf_callbacks_is_not_this", []),
    "a syntax error": ("def f(:", []),
    "a killed program": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", []),
    "an interrupt": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", []),
    "standard input": ("print(input())", []),
    "spawned processes": (PICKLED, ["spawn"]),
    "forked processes": (PICKLED, ["fork"]),
}


def launched(directory, *words, flags=(), **environ):
    """Run Python and return its exit code, its output, and its complaints without ours."""
    environ = {**os.environ, "PYTHONPATH": SOURCE, "TMPDIR": str(directory), **environ}
    done = subprocess.run(
        [sys.executable, *flags, *words],
        cwd=directory,
        env=environ,
        input="typed\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.replace(autoload.NOTHING_MEASURED + "\n", "")


@pytest.mark.skipif(os.name == "nt", reason="signals and fork")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_script_runs_as_it_does_without(tmp_path, program):
    source, arguments = PROGRAMS[program]
    (tmp_path / "train.py").write_text(source)
    directly = launched(tmp_path, "train.py", *arguments)
    assert launched(tmp_path, *RUN, "train.py", *arguments) == directly
    if program == "a killed program":
        assert directly[0] == -signal.SIGTERM


def test_a_module_runs_as_it_does_without(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "there.py").write_text("HERE = 1")
    (package / "train.py").write_text("from .there import HERE" + TELLING)
    directly = launched(tmp_path, "-m", "package.train", "a b")
    assert directly[0] == 0
    assert launched(tmp_path, *RUN, "-m", "package.train", "a b") == directly


def test_the_interpreter_keeps_its_flags(tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(sys.flags, sys.warnoptions, sys._xoptions)")
    flags = ("-O", "-B", "-X", "dev", "-W", "ignore")
    assert launched(tmp_path, *RUN, "train.py", flags=flags) == launched(tmp_path, "train.py", flags=flags)


def test_the_sitecustomize_of_the_user_runs_as_ever(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    (tmp_path / "train.py").write_text("import sitecustomize; print(sitecustomize.__file__)")
    path = os.pathsep.join([str(tmp_path), SOURCE])
    directly = launched(tmp_path, "train.py", PYTHONPATH=path)
    code, said, complaints = launched(tmp_path, *RUN, "train.py", PYTHONPATH=path)
    assert (code, said.removeprefix("customized\n"), complaints) == directly  # the command itself was customized too
    assert directly[1] == f"customized\n{tmp_path / 'sitecustomize.py'}\n"


def test_a_command_is_found_on_the_path_and_its_python_processes_are_armed(tmp_path):
    (tmp_path / "trainit").write_text(f'#!/bin/sh\n"{sys.executable}" -c "$1"\n')
    (tmp_path / "trainit").chmod(0o755)
    looking = "import sys; print([type(finder).__module__ for finder in sys.meta_path][0])"
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    assert launched(tmp_path, *RUN, "trainit", looking, PATH=path) == (0, "perf_callbacks.launch.autoload\n", "")


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX")
@pytest.mark.parametrize(
    ("target", "flags"),
    [("trainit", ()), ("train.py", ("-I",)), ("killed.py", ()), ("train.py --help", ()), ("fine.py", ())],
)
def test_no_file_is_left_in_the_temporary_directory(tmp_path, target, flags):
    (tmp_path / "trainit").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "trainit").chmod(0o755)
    (tmp_path / "train.py").write_text("print('trained')")
    (tmp_path / "killed.py").write_text("import os; os._exit(0)")
    (tmp_path / "fine.py").touch()
    left = tmp_path / "left"
    left.mkdir()
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    words = [sys.executable, *flags, "-c", f"import sys; sys.path.insert(0, {SOURCE!r}); {MAIN}", *target.split()]
    environ = {**os.environ, "PYTHONPATH": SOURCE, "TMPDIR": str(left), "PATH": path}
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert len([*left.iterdir()]) == (target == "killed.py")
    assert (autoload.NOTHING_MEASURED in done.stderr) is (target == "fine.py")


@pytest.mark.parametrize(
    ("flag", "told"), [("-I", "-I"), ("-E", "-E"), ("-uS", "-uS"), ("-B", None), ("-WIgnore", None), ("-X", None)]
)
def test_an_interpreter_without_a_path_is_named(monkeypatch, capsys, flag, told):
    words = [sys.executable, flag, *(["IES"] if flag == "-X" else []), "-m", "json.tool"]
    monkeypatch.setattr(run, "find", lambda _: words)
    monkeypatch.setattr(run, "WINDOWS", False)

    def become(_path, _words, environ):
        Path(environ[autoload.RUN].partition(":")[2] or "none").unlink(missing_ok=True)
        raise SystemExit

    monkeypatch.setattr(run.os, "execve", become)
    with pytest.raises(SystemExit):
        run.main(["-m", "json.tool"])
    sentence = f"perf-callbacks run: python {told} doesn't import sitecustomize: nothing is measured.\n"
    assert capsys.readouterr().err == (sentence if told else "")


def test_switched_off_nothing_is_armed(tmp_path):
    (tmp_path / "train.py").write_text("import os, sys; print({**os.environ}, sys.path, sys.meta_path)")
    off = {"PERF_CALLBACKS": "0"}
    code, said, complaints = launched(tmp_path, *RUN, "train.py", **off)
    assert (code, complaints) == (0, "")
    assert "perf_callbacks.launch.autoload" not in said
    assert str(run.SITE) not in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere.py", "--lr", "1"], "perf-callbacks run: there is no file and no command named nowhere.py.\n"),
        (["-m", "nowhere"], "perf-callbacks run: there is no module named nowhere.\n"),
        (["-m"], f"perf-callbacks run: nothing to run. {run.USAGE}\n"),
        ([], f"perf-callbacks run: nothing to run. {run.USAGE}\n"),
    ],
)
def test_a_program_that_is_not_there(capsys, words, complaint):
    assert run.main(words) == 2
    assert capsys.readouterr().err == complaint


@pytest.mark.parametrize("words", [["train.py", "-m", "--", "a b", "-h"], ["-m", "package.train", "--", "-m"]])
def test_the_command_passes_everything_on(monkeypatch, words):
    passed = []
    monkeypatch.setattr(run, "main", lambda words: passed.extend(words) or 7)
    assert (commands.main(["run", *words]), passed) == (7, words)


@pytest.mark.skipif(os.name == "nt", reason="the program that stands for all is a POSIX one")
def test_a_process_that_can_not_become_another_waits_for_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run, "WINDOWS", True)
    monkeypatch.setattr(run, "find", lambda _: [sys.executable, "-c", "import sys; sys.exit(len(sys.argv) - 1)", "1"])
    monkeypatch.setattr(run.tempfile, "tempdir", str(tmp_path))
    assert run.main(["train.py"]) == 1
    monkeypatch.setattr(run, "find", lambda _: [sys.executable, "-c", ""])
    assert run.main(["train.py"]) == 0
    assert capsys.readouterr().err == autoload.NOTHING_MEASURED + "\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("print('trained')", True),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'], check=True)", True),
        ("import os; os.fork() or print(1)", True),
        ("1 / 0", False),
        ("import perf_callbacks.session", False),
        pytest.param(
            "import os, subprocess, sys; subprocess.run([sys.executable, '-c', 'import perf_callbacks.loop'])",
            False,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["nothing", "a tool", "a fork", "an exception", "measured", "measured by a process of its own"],
)
def test_a_program_without_a_trainer_is_told_of_it_once(tmp_path, source, told):
    (tmp_path / "train.py").write_text(source)
    left = tmp_path / "left"
    left.mkdir()
    environ = {**os.environ, "PYTHONPATH": SOURCE, "TMPDIR": str(left)}
    done = subprocess.run(
        [sys.executable, *RUN, "train.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.stderr.count(autoload.NOTHING_MEASURED) == told
    assert [*left.iterdir()] == []


@each_row(
    ("words", "flags"),
    [
        (["python"], []),
        (["python", "-"], []),
        (["python", "-c", "print()", "-m"], []),
        (["python", "-uB", "-m", "perf_callbacks.run", "-O"], ["-uB"]),
        (["python", "-mperf_callbacks.run"], []),
        (["python", "-X", "importtime", "train.py"], ["-X", "importtime"]),
        (["python", "-Xcpu_count=2", "train.py"], ["-Xcpu_count=2"]),
    ],
)
def test_the_flags_of_an_interpreter(words, flags):
    assert run.interpreter_flags(words) == flags


def test_the_environment_of_the_program():
    made = run.environment({"PYTHONPATH": os.pathsep.join(["/a", "", "/b"]), "HOME": "/home"})
    process, _, file = made.pop(autoload.RUN).partition(":")
    Path(file).unlink()
    assert int(process) == os.getpid()
    path = os.pathsep.join([str(run.SITE), "/a", "", "/b"])  # an empty entry is the working directory
    assert made == {"PYTHONPATH": path, "HOME": "/home", "PERF_CALLBACKS": "1"}


def test_without_a_temporary_directory_the_program_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
    assert run.environment({})[autoload.RUN] == f"{os.getpid()}:"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    assert run.environment({})[autoload.RUN] == f"{os.getpid()}:"


def test_a_run_within_a_run_says_nothing_by_itself():
    outer = run.environment({})
    Path(outer[autoload.RUN].partition(":")[2]).unlink()
    assert run.environment(outer)[autoload.RUN] == outer[autoload.RUN]
    assert outer["PYTHONPATH"] == str(run.SITE)
