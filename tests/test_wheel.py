"""The wheel, in an environment without torch."""

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


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(directory), str(ROOT))
    assert built.returncode == 0, built.stderr
    return next(directory.glob("perf_callbacks-*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_only_the_package_its_types_and_its_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"perf_callbacks/py.typed", "perf_callbacks/launch/site/sitecustomize.py"} <= {*names}
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
    installed = run(python, "-m", "pip", "install", "--no-deps", str(wheel))
    assert installed.returncode == 0, installed.stderr
    shutil.copytree(Path(msgspec.__file__).parent, next((tmp_path / "env").rglob("site-packages")) / "msgspec")
    assert run(python, "-c", "import perf_callbacks; print(perf_callbacks.PerfConfig().gc)").stdout == "sync\n"
    calculator = str(tmp_path / "env" / "bin" / "perf-callbacks")
    assert run(calculator, "flops", "--params", "1e9", "--seq", "1", "--batch", "1").stdout.startswith(
        "model: 1,000,000,000"
    )
    assert "No module named 'torch'" in run(python, "-c", "import perf_callbacks.loop").stderr


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
        "Makefile",
    }
    needed |= {path.name for path in ROOT.glob("constraints*.txt")}
    assert {name for name in needed if not any(fnmatch(name, pattern) for pattern in included)} == set()
