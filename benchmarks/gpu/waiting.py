"""Whether anything waits for the device: what torch's profiler saw in steady steps, with us and without."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from gpu.bench import NEEDS_CUDA, Bench, Row, quiet
from gpu.models import large
from perf_callbacks.loop import measure

WARM = 8
"""Steps before it: what is done once is over then."""

STEADY = 64
"""As many as the journal takes at once, so that it writes once meanwhile."""

COLUMNS = (
    "calls a step",
    "nobody measures",
    "ours",
    "ours, a row every 8 steps",
    "added by ours",
    "added with rows",
    "of one made on purpose, seen",
)

WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "Memcpy DtoH")
SEEN = (*WAITS, "cudaStreamWaitEvent", "cudaEventQuery", "cudaEventRecord", "cudaEventElapsedTime", "cudaLaunchKernel")
SAID = "said by torch's sync debug mode"
ASKS = ("aten::item", "aten::_local_scalar_dense")


def rows(bench: Bench) -> Iterator[Row]:
    found = [_profiled(bench, ours=ours, every=every) for ours, every in ((False, 0), (True, 0), (True, 8))]
    known = _known(bench)
    for name in (*SEEN, *ASKS, SAID):
        if not bench.cuda and name not in ASKS:
            yield name, *[NEEDS_CUDA] * 6
            continue
        none, ours, asked = (calls[name] / STEADY for calls in found)
        shown = (f"{value:.3f}" for value in (none, ours, asked))
        yield name, *shown, f"{ours - none:+.3f}", f"{asked - none:+.3f}", str(known[name])


def _profiled(bench: Bench, *, ours: bool, every: int) -> Counter[str]:
    """Calls in the steady steps, by name; a copy to the host goes by its kind."""
    case = large(bench)
    loader = [case.batch] * (WARM + STEADY)
    with quiet():
        perf = measure(model=case.model, optimizer=case.optimizer, loader=loader, config=bench.config())
        batches = iter((perf if ours else contextlib.nullcontext(perf)).__enter__().loader)
        for _ in range(WARM):
            case.step(next(batches))
        bench.synchronize()
        with _seen(bench) as calls:
            for number in range(1, STEADY + 1):
                case.step(next(batches))
                if every and number % every == 0:
                    perf.row()
        bench.synchronize()
        if ours:
            perf.__exit__(None, None, None)
    return calls


def _known(bench: Bench) -> Counter[str]:
    """One call of each, by which zeros can be told from what the profiler doesn't see."""
    number = torch.ones(1, device=bench.device)
    with _seen(bench) as calls:
        number.item()
        if bench.cuda:
            event, other = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            event.record()
            other.record()
            torch.cuda.current_stream().wait_event(other)
            other.query()
            other.synchronize()
            event.elapsed_time(other)
            torch.cuda.current_stream().synchronize()
            torch.cuda.synchronize()
    return calls


@contextlib.contextmanager
def _seen(bench: Bench) -> Iterator[Counter[str]]:
    """Calls in the block, by name, once it is over; a copy to the host goes by its kind."""
    calls: Counter[str] = Counter()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.cuda else [])]
    with warnings.catch_warnings(record=True) as said, profile(activities=activities) as profiler:
        warnings.simplefilter("always")
        _debug(bench, "warn")
        try:
            yield calls
        finally:
            _debug(bench, "default")
    for event in profiler.key_averages():
        calls["Memcpy DtoH" if event.key.startswith("Memcpy DtoH") else event.key] += event.count
    calls[SAID] = sum("called a synchronizing" in str(warning.message) for warning in said)


def _debug(bench: Bench, mode: str) -> None:
    if bench.cuda:
        torch.cuda.set_sync_debug_mode(mode)
