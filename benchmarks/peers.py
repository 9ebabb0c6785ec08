"""Others who measure, used as they ask to be used: each where it has something for a door, and where it is installed.

    pip install 'perf_callbacks[peers]'

What TraceML puts into torch stays there for the rest of the process, in everybody's turns: what it costs where it is
not in use is not in its figure.
"""

import atexit
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

Step = Callable[[Any], object]

PORT = "29765"


def loops(step: Step, model: torch.nn.Module) -> dict[str, Callable[[], Step]]:
    """By name, what makes a measured training step of a training step."""
    return _installed({"TraceML": _traceml_loop}, lambda make: make(step, model))


def transformers_callbacks(batch: dict[str, torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """By name, what makes a callback for the Hugging Face `Trainer`."""
    return _installed({"TraceML": _traceml_trainer_callback}, lambda make: make(batch))


def lightning_callbacks() -> dict[str, Callable[[], Any]]:
    """By name, what makes a callback for Lightning's."""
    return _installed({"TraceML": _traceml_callback}, lambda make: make())


def left_out() -> str:
    """Who takes no turns, and why."""
    absent = [
        f"{name} takes no turns: it is not installed." for name, package in PACKAGES.items() if not _version(package)
    ]
    return "\n".join([*absent, "trainmeter takes no turns: what it puts into torch stays there for good."])


PACKAGES = {"TraceML": "traceml-ai"}


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _installed(makers: dict[str, Callable[..., Any]], make: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    present = {name: maker for name, maker in makers.items() if _version(PACKAGES[name])}
    return {f"{name} {_version(PACKAGES[name])}": functools.partial(make, maker) for name, maker in present.items()}


def _traceml_loop(step: Step, model: torch.nn.Module) -> Step:
    import traceml_ai

    _serve()
    traceml_ai.init(mode="auto")

    def traced(inputs: Any) -> None:
        with traceml_ai.trace_step(model):
            step(inputs)

    return traced


def _traceml_trainer_callback(_batch: object) -> Any:
    from traceml_ai.integrations import huggingface

    _serve()
    huggingface.init()
    return huggingface.TraceMLTrainerCallback()


def _traceml_callback() -> Any:
    from traceml_ai.integrations import lightning

    _serve()
    lightning.init()
    return lightning.TraceMLCallback()


@functools.cache
def _serve() -> None:
    """TraceML's other half, a process of its own, on whatever CPU is free."""
    os.environ |= {"TRACEML_ON_MISSING_AGGREGATOR": "raise", "TRACEML_SESSION_ID": "overhead"}
    command = [Path(sys.executable).with_name("traceml"), "serve", "--aggregator-port", PORT, "--run-name", "overhead"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, cwd=os.environ["TRACEML_LOGS_DIR"], **quiet)
    os.sched_setaffinity(server.pid, range(os.cpu_count() or 1))
    atexit.register(server.terminate)
    for _ in range(300):
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", int(PORT)), 1).close()
            return
        time.sleep(0.2)
