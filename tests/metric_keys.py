"""Keys of the metrics that a fit has, from the registry."""

from perf_callbacks.kernel.records.metric_table import CLOCK, FLOPS, GC, KEYS, MASK, METRICS, PEAK

ON_CPU = (CLOCK, GC, MASK, FLOPS, PEAK)
"""Needs that a fit in one process on a CPU meets, if its FLOPs are counted."""

MAIN = [metric.key for metric in METRICS if metric.main]


def keys(*met):
    """Keys of the metrics whose needs are met."""
    return {metric.key for metric in METRICS if {*metric.needs} <= {*met}}


def needing(need):
    """Keys of the metrics with this need."""
    return {metric.key for metric in METRICS if need in metric.needs}


def of_run(keys):
    """Keys of the averages over a run, in the order of the keys of a row."""
    run_keys = {metric.key: KEYS["whole"][metric.name] for metric in METRICS}
    return [run_keys[key] for key in keys]


CONSTANT = {metric.key for metric in METRICS if metric.constant} | {"perf/mfu_mixed"}
LOGGED = keys(*ON_CPU) - CONSTANT
"""Keys that loggers get of a fit in one process on a CPU, where `mfu_mixed` equals `mfu`."""
