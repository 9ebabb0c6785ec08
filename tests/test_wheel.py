"""The wheel, built from the source distribution, without torch and with the frameworks of this environment."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[1]


def run(*command, paths=(), cwd=None):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment, cwd=cwd or ROOT
    )


def done(*command, **options):
    ended = run(*command, **options)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the unpacked source distribution, where git knows no version."""
    directory = tmp_path_factory.mktemp("wheel")
    tools = directory / "tools"
    done(sys.executable, "-m", "pip", "install", "--target", str(tools), "hatchling>=1.26")
    done(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(directory), paths=[tools])
    source = next(directory.glob("perf_callbacks-*.tar.gz"))
    done(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(directory), str(source))
    return next(directory.glob("perf_callbacks-*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_only_the_package_its_types_and_its_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    programs = {"perf_callbacks/launch/demo/train.py", "perf_callbacks/launch/site/sitecustomize.py"}
    assert {"perf_callbacks/py.typed", *programs} <= {*names}
    page = (
        "page.html",
        "page.css",
        "page.js",
        "charts.js",
        "uplot/uPlot.iife.min.js",
        "uplot/uPlot.min.css",
        "uplot/LICENSE",
    )
    assert {f"perf_callbacks/report/page/{name}" for name in page} <= {*names}
    assert any(name.endswith("LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"perf_callbacks"}


@pytest.mark.slow
def test_without_torch_the_package_imports_and_a_door_says_what_is_missing(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    done(python, "-m", "pip", "install", "--no-deps", str(wheel))
    shutil.copytree(Path(msgspec.__file__).parent, next((tmp_path / "env").rglob("site-packages")) / "msgspec")
    assert run(python, "-c", "import perf_callbacks; print(perf_callbacks.PerfConfig().gc)").stdout == "sync\n"
    calculator = str(tmp_path / "env" / "bin" / "perf-callbacks")
    assert (
        run(calculator, "flops", "--params", "1e9", "--seq", "1", "--batch", "1")
        .stdout.lstrip()
        .startswith("model FLOPs")
    )
    assert "No module named 'torch'" in run(python, "-c", "import perf_callbacks.loop").stderr


TRAINER = """
from trainings import models
from transformers import Trainer, TrainingArguments
from perf_callbacks.transformers import PerfCallback

arguments = TrainingArguments("out/trainer", max_steps=4, report_to=[], use_cpu=True)
Trainer(model=models.llama(), args=arguments, train_dataset=models.Tokens(48), callbacks=[PerfCallback()]).train()
"""


@pytest.mark.slow
def test_the_wheel_measures_with_the_frameworks_of_this_environment(wheel, tmp_path):
    package = tmp_path / "package"
    done(sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(package), str(wheel))
    found = done(sys.executable, "-c", "import perf_callbacks; print(perf_callbacks.__file__)", paths=[package])
    assert Path(found.strip()).is_relative_to(package)
    examples = [
        [str(ROOT / f"examples/{name}.py")] for name in ("plain_loop", "accelerate_loop", "lightning_classifier")
    ]
    for program in [*examples, ["-c", TRAINER]]:
        printed = done(sys.executable, *program, paths=[package, ROOT / "tests"], cwd=tmp_path)
        assert "since measuring began" in " ".join(printed.split())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_the_source_distribution_has_what_its_tests_need():
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    needed = {
        "src",
        "tests",
        "docs",
        "examples",
        "benchmarks",
        "conftest.py",
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CITATION.cff",
        ".github",
        "Makefile",
    }
    needed |= {path.name for path in ROOT.glob("constraints*.txt")}
    assert {name for name in needed if not any(fnmatch(name, pattern) for pattern in included)} == set()
