"""Events of Kineto traces, by hand. Times in microseconds."""

import gzip
import json

from perf_callbacks.profiles import reduction, trace_events

MAIN, BACKWARD = 1, 2


def event(category, name, start, duration, *, thread=MAIN, **arguments):
    names = {"external_id": "External id", "shapes": "Input Dims", "types": "Input type", "sequence": "Sequence number"}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0 if category.startswith(("kernel", "gpu_")) else 4321,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": {names.get(key, key): value for key, value in arguments.items()},
    }


def step(number, start, duration):
    return event("user_annotation", f"ProfilerStep#{number}", start, duration)


def operation(name, start, duration, **arguments):
    return event("cpu_op", name, start, duration, **arguments)


def annotation(name, start, duration, **arguments):
    return event("user_annotation", name, start, duration, **arguments)


def function(name, start, duration, **arguments):
    return event("python_function", name, start, duration, **arguments)


def launch(correlation, start, duration=2, name="cudaLaunchKernel", **arguments):
    return event("cuda_runtime", name, start, duration, correlation=correlation, **arguments)


def kernel(name, start, duration, correlation=None, *, stream=7, **arguments):
    return event("kernel", name, start, duration, thread=stream, device=0, correlation=correlation, **arguments)


def memcpy(direction, start, duration, correlation=None, *, stream=7):
    name = f"Memcpy {direction} (Pageable -> Device)"
    return event("gpu_memcpy", name, start, duration, thread=stream, device=0, correlation=correlation)


def trace(events, **more):
    devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    return {"schemaVersion": 1, "deviceProperties": devices, **more, "traceEvents": [*events]}


def profile(*events):
    return reduction.reduce(trace_events.decode(json.dumps(trace(events)).encode()))


def write(path, events, **more):
    data = json.dumps(trace(events, **more)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def microseconds(times):
    """Times of a record in microseconds."""
    return {name: round(seconds * 1e6, 6) for name, seconds in times.items()}
