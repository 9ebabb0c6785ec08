"""Whether anything waits for the device: what torch's profiler saw in steady steps, with us and without."""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch.profiler import ProfilerActivity, profile

from gpu.bench import NEEDS_CUDA, Bench, Row, quiet
from gpu.models import large
from perf_callbacks.loop import measure

WARM = 8
"""Steps before it: what is done once is over then."""

STEADY = 64
"""As many as the journal takes at once, so that it writes once meanwhile."""

COLUMNS = ("calls a step", "nobody measures", "ours", "ours, a row every 8 steps", "added by ours", "added with rows")

WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "Memcpy DtoH")
SEEN = (*WAITS, "cudaStreamWaitEvent", "cudaEventQuery", "cudaEventRecord", "cudaEventElapsedTime", "cudaLaunchKernel")
ASKS = ("aten::item", "aten::_local_scalar_dense")


def rows(bench: Bench) -> Iterator[Row]:
    found = [_profiled(bench, ours=ours, every=every) for ours, every in ((False, 0), (True, 0), (True, 8))]
    for name in (*SEEN, *ASKS, "said by torch's sync debug mode"):
        if not bench.cuda and name not in ASKS:
            yield name, *[NEEDS_CUDA] * 5
            continue
        none, ours, asked = (calls[name] / STEADY for calls in found)
        yield name, *(f"{value:.3f}" for value in (none, ours, asked)), f"{ours - none:+.3f}", f"{asked - none:+.3f}"


def _profiled(bench: Bench, *, ours: bool, every: int) -> Counter[str]:
    """Calls in the steady steps, by name; a copy to the host goes by its kind."""
    case = large(bench)
    loader = [case.batch] * (WARM + STEADY)
    with quiet():
        perf = measure(model=case.model, optimizer=case.optimizer, loader=loader, config=bench.config())
        batches = iter((perf if ours else nullcontext(perf)).__enter__().loader)
        for _ in range(WARM):
            case.step(next(batches))
        bench.synchronize()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.cuda else [])]
        with warnings.catch_warnings(record=True) as said, profile(activities=activities) as profiler:
            warnings.simplefilter("always")
            _debug(bench, "warn")
            for number in range(1, STEADY + 1):
                case.step(next(batches))
                if every and number % every == 0:
                    perf.row()
            _debug(bench, "default")
        bench.synchronize()
        if ours:
            perf.__exit__(None, None, None)
    calls: Counter[str] = Counter()
    for event in profiler.key_averages():
        calls["Memcpy DtoH" if event.key.startswith("Memcpy DtoH") else event.key] += event.count
    calls["said by torch's sync debug mode"] = sum("synchroniz" in str(warning.message) for warning in said)
    return calls


def _debug(bench: Bench, mode: str) -> None:
    if bench.cuda:
        torch.cuda.set_sync_debug_mode(mode)
