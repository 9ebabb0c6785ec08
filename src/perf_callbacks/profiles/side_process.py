"""Reduce traces of torch.profiler in a side process at low priority.

Each line on stdin is a job: a trace, the path for a gzipped copy, and the last complete step. The answer is a line on
stdout: the `profile` record, or the reason why there is none.
"""

import importlib
import json
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

MOST_KEPT_BYTES = 20_000_000  # a larger gzipped trace is not kept

MOST_BYTES = 200_000_000
"""Bytes of JSON: reading a trace of 200 MB takes up to 1 GB of memory, which the training may need."""

LOWEST_PRIORITY = 19


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(LOWEST_PRIORITY)
    try:  # noqa: SIM105 `contextlib.suppress` is banned, and ours can't be imported here
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:  # another system than Linux, which may kill the training instead if memory runs out
        pass
    for line in sys.stdin.buffer:
        job = json.loads(line)
        answer = json.dumps(done(Path(job["trace"]), Path(job["kept"]), job["last"]))
        try:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()
        except OSError:  # the training is gone
            return


def done(trace: Path, kept: Path, last: int) -> dict[str, str | None]:
    """`last` is the last complete step; the mark of the step after it is ignored."""
    events = importlib.import_module("perf_callbacks.profiles.trace_events")
    reduction = importlib.import_module("perf_callbacks.profiles.reduction")  # an idle process needs no memory for it
    pack = importlib.import_module("perf_callbacks.kernel.records.codec").pack
    answer: dict[str, str | None] = {"profile": None, "trouble": None, "unkept": None}
    profile = None
    try:
        content = events.read(trace, MOST_BYTES)
        content.traceEvents = [event for event in content.traceEvents if event.name != f"ProfilerStep#{last + 1}"]
        profile = reduction.reduce(content)
    except Exception as error:  # noqa: BLE001 a trace may hold anything
        answer["trouble"] = str(error) or type(error).__name__
    try:
        size = keep(trace, kept)
        if size > MOST_KEPT_BYTES:
            answer["unkept"] = f"it has {size / 1e6:.0f} MB, more than {MOST_KEPT_BYTES / 1e6:.0f} MB"
    except OSError as error:
        answer["unkept"] = error.strerror or str(error)
    if profile is not None:
        answer["profile"] = pack(replace(profile, trace=None if answer["unkept"] else kept.name))
    return answer


def keep(trace: Path, kept: Path) -> int:
    """Compress the trace to its place, unless it is too large, and return its bytes."""
    try:
        importlib.import_module("perf_callbacks.kernel.records.atomic_file").replace(kept, _compressed(trace))
        size = kept.stat().st_size
        if size > MOST_KEPT_BYTES:
            kept.unlink()
        return size
    finally:
        trace.unlink(missing_ok=True)


def _compressed(trace: Path) -> Iterator[bytes]:
    packer = zlib.compressobj(6, wbits=31)  # gzip's format
    with trace.open("rb") as source:
        while part := source.read(1 << 20):
            yield packer.compress(part)
    yield packer.flush()


if __name__ == "__main__":
    if os.getppid() != 1 and os.fork():  # process 1 would inherit the child, and never wait for it
        os._exit(0)  # the training has no child then, which its `os.wait` would return, or wait for
    package = str(Path(__file__).parents[2])
    sys.path.insert(0, package)
    importlib.import_module("perf_callbacks")
    sys.path.remove(package)  # this and the program's directories come last: there may be a file `json.py`
    sys.path += json.loads(sys.argv[1])
    main()
