"""Nothing leaks from one test into the next."""

import atexit
import gc
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator

import pytest
from sampling import DAY

try:
    import torch
    from torch.nn.modules import module as modules
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
except ImportError:  # `make test-pythons`
    torch = None

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for subprocesses; threads that spin for a shared core cost minutes
if torch is not None:
    torch.set_num_threads(1)

# A shell in which the suite runs in the background has interrupts ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A peak that is measured is kept for all tests of this run, and for no other.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="perf_callbacks-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

FROM_OUTSIDE = {*os.environ}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Delete what frameworks leave in the environment, before a fixture of any scope starts.

    Training arguments leave their precision and their compiler there, a `LightningCLI` the seed of workers, launchers
    the numbers of ranks.
    """
    for name in {*os.environ} - FROM_OUTSIDE:
        if name.startswith(("ACCELERATE_", "PL_", "MASTER_")) or name.endswith(("RANK", "WORLD_SIZE")):
            del os.environ[name]


def pytest_report_header() -> str:
    return f"crossed cases: TESTS_DAY={DAY}"


def _process() -> dict[str, object]:
    found = {
        "gc enabled": gc.isenabled(),
        "gc thresholds": gc.get_threshold(),
        "gc callbacks": list(gc.callbacks),
        "affinity": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "threads": {thread.name for thread in threading.enumerate() if not thread.daemon},
    }
    if torch is None:
        return found
    return found | {
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "backward": (torch.autograd.backward, torch.autograd.grad),
        "module hooks": [*modules._global_forward_pre_hooks, *modules._global_forward_hooks],
    }


EARLIER: list[str] = []
"""The tests that have run in this process."""


@pytest.fixture(autouse=True)
def _process_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    assert gc.get_threshold()[0], f"the collector is still held by one of {EARLIER[-8:]}"
    EARLIER.append(request.node.nodeid)
    before = _process()
    yield
    assert _process() == before


@pytest.fixture(autouse=True, scope="module")
def _long_lived_objects_are_frozen() -> None:
    """Make full collections quick. Without it, each goes through all of torch and the frameworks for 0.4 seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _errors_keep_no_frames(request: pytest.FixtureRequest) -> Iterator[None]:
    """Free what the frames of a test hold. Otherwise, an error that is a parameter keeps them until the suite ends."""
    yield
    for value in request.node.callspec.params.values() if hasattr(request.node, "callspec") else ():
        if isinstance(value, BaseException):
            value.__traceback__ = value.__context__ = value.__cause__ = None


@pytest.fixture
def thawed() -> Iterator[None]:
    """Freeze no object, for tests of what the callback freezes."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PERF_CALLBACKS")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _verdicts_of_short_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give verdicts on the runs of tests, which last for less than ten seconds."""
    if request.node.get_closest_marker("verdict_after_ten_seconds") is None:
        monkeypatch.setattr("perf_callbacks.kernel.records.fit_records.ENOUGH_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _counts_take_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count in each step that is to be counted, also on a busy machine: a test's steps are shorter than its counts."""
    if torch is not None:
        monkeypatch.setattr("perf_callbacks.flops.count_schedule.EARLY_SECONDS", math.inf)
        monkeypatch.setattr("perf_callbacks.flops.observer.LEAST_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def _nothing_is_compiled() -> None:
    """Forget what earlier tests have compiled. Programs that compile are counted in another way."""
    if "torch._dynamo.eval_frame" in sys.modules:
        from torch._dynamo.utils import counters

        from perf_callbacks.kernel.process.compiler import compiles

        if compiles():
            torch._dynamo.reset()
            counters.clear()


if torch is None:  # other Pythons have no framework: what needs one is skipped there
    collect_ignore = ["integrations"]
    NEEDED = {"accelerate", "lightning", "numpy", "torch", "transformers"}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call() -> Iterator[None]:
        try:
            return (yield)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in NEEDED:
                pytest.skip(f"needs {error.name}")
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
        report = yield
        if report.outcome == "failed" and any(f"No module named '{name}" in str(report.longrepr) for name in NEEDED):
            report.outcome, report.longrepr = "skipped", (str(collector.path), 0, "Skipped: it needs a framework")
        return report
