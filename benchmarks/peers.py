"""Others who measure, used as they ask to be used: each where it has something for a door, and where it is installed.

    pip install 'perf_callbacks[peers]'

mfu-tracker and Zeus do nothing without a GPU. Where there is none, CUDA events and synchronisation that do nothing
stand in for mfu-tracker's, and Zeus asks no device for its energy: what they cost then is less than on a GPU.

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
from types import SimpleNamespace
from typing import Any

import torch

Step = Callable[[Any], object]

PORT = "29765"


class Event:
    """Of a device that isn't there."""

    def __init__(self, *, enable_timing: bool) -> None: ...

    def record(self) -> None: ...

    def elapsed_time(self, _: object) -> float:
        return 1.0


NO_DEVICE = SimpleNamespace(is_available=lambda: True, Event=Event, synchronize=lambda _: None)


def loops(step: Step, model: torch.nn.Module) -> dict[str, Callable[[], Step]]:
    """By name, what makes a measured training step of a training step."""
    return _installed(
        {"mfu-tracker": _mfu_loop, "TraceML": _traceml_loop, "Zeus": _zeus_loop}, lambda make: make(step, model)
    )


def transformers_callbacks(batch: dict[str, torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """By name, what makes a callback for the Hugging Face `Trainer`."""
    return _installed({"mfu-tracker": _mfu_callback, "TraceML": _traceml_trainer_callback}, lambda make: make(batch))


def lightning_callbacks() -> dict[str, Callable[[], Any]]:
    """By name, what makes a callback for Lightning's."""
    return _installed({"TraceML": _traceml_callback}, lambda make: make())


def left_out() -> str:
    """Who takes no turns, and why."""
    absent = [
        f"{name} takes no turns: it is not installed." for name, package in PACKAGES.items() if not _version(package)
    ]
    return "\n".join([*absent, "trainmeter takes no turns: what it puts into torch stays there for good."])


PACKAGES = {"mfu-tracker": "mfu-tracker", "TraceML": "traceml-ai", "Zeus": "zeus"}


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _installed(makers: dict[str, Callable[..., Any]], make: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    present = {name: maker for name, maker in makers.items() if _version(PACKAGES[name])}
    return {f"{name} {_version(PACKAGES[name])}": functools.partial(make, maker) for name, maker in present.items()}


def _zeus_loop(step: Step, _model: torch.nn.Module) -> Step:
    from zeus.monitor import ZeusMonitor

    monitor = ZeusMonitor(None if torch.cuda.is_available() else [], [])

    def windowed(inputs: Any) -> None:
        monitor.begin_window("step")
        step(inputs)
        monitor.end_window("step")

    return windowed


def _mfu_loop(step: Step, _model: torch.nn.Module) -> Step:
    from mfu_tracker import tracker

    spec = _spec(tracker)

    def tracked(inputs: Any) -> None:
        with tracker.track(1_000_000, 1_000_000, num_tokens=32, dtype="fp32", spec=spec):
            step(inputs)

    return tracked


def _mfu_callback(batch: dict[str, torch.Tensor]) -> Any:
    from mfu_tracker.integrations import hf_trainer

    _spec(hf_trainer)
    return hf_trainer.MFUCallback(sample_batch=batch)


def _spec(module: Any) -> Any:
    """What mfu-tracker knows of the GPU; without one, `module` gets what does as if."""
    from mfu_tracker.gpu import GPUSpec, get_gpu_spec

    if torch.cuda.is_available():
        return get_gpu_spec()
    spec = GPUSpec("none", (8, 0), 1, 1e9, 1e12, {"fp32": 1e12}, 1.0)
    module.torch = SimpleNamespace(cuda=NO_DEVICE, Tensor=torch.Tensor)
    module.get_gpu_spec = lambda _: spec
    return spec


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
