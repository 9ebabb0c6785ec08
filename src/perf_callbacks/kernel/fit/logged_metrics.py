"""Choose the metrics that loggers and consoles get. The journal has all metrics."""

import math
from collections.abc import Iterable, Mapping

from perf_callbacks.kernel.records.metric_table import METRICS, PREFIX, RUN

MAIN = tuple([metric.name for metric in METRICS if metric.main])
"""Names of the metrics that a console shows. Samples per second are shown only if tokens are unknown."""

ORDINARY = {metric.name: metric.usual for metric in METRICS if metric.constant}
"""Metrics that stay constant in a run, with their usual values. The usual value of `peak_tflops` is the first value in
a run."""


def main(names: Iterable[str]) -> list[str]:
    """Return the metrics for a console, the most important first. Names that don't begin with `perf/` are ignored.

    >>> main(["perf/mfu", "perf/hfu", "loss", "perf/samples_per_second", "perf/step_time"])
    ['perf/step_time', 'perf/samples_per_second', 'perf/mfu']
    """
    found = {_metric(name): name for name in names if name.startswith(PREFIX)}
    if "tokens_per_second" in found:
        found.pop("samples_per_second", None)
    return [found[metric] for metric in MAIN if metric in found]


def hidden(names: Iterable[str], console: str) -> list[str]:
    """Return the names of our metrics that a console leaves out. `console` is the value of the setting `console`.

    >>> hidden(["perf/mfu", "perf/hfu"], "main")
    ['perf/hfu']
    """
    ours = [*names] if console != "all" else []
    shown = main(ours) if console == "main" else []
    return [name for name in ours if name not in shown]


def bar(row: Mapping[str, float], console: str) -> dict[str, float]:
    """Return the metrics for the one line of a progress bar. `console` is the value of the setting `console`."""
    left_out = hidden(row, console)
    line = (PREFIX + "step_time", PREFIX + "mfu") if console == "main" else row
    return {name: row[name] for name in line if name in row and name not in left_out}


class Logged:
    """Chooses the metrics that loggers get, by the setting `metrics`.

    A metric that stays constant in a run is logged only when it changes. `mfu_mixed` is logged only if it differs from
    `mfu`.
    """

    def __init__(self, which: str) -> None:
        self._which = which
        self.names = set[str]()
        """Names of all our metrics so far. If another name begins with `perf/`, the metric is the program's own."""
        self._last: dict[str, float | None] = dict(ORDINARY)

    def row(self, metrics: Mapping[str, float]) -> dict[str, float]:
        if self._last["peak_tflops"] is None:
            self._last["peak_tflops"] = metrics.get(PREFIX + "peak_tflops")
        chosen = self._chosen(metrics, self._last)
        self._last |= {name: metrics[PREFIX + name] for name in ORDINARY if PREFIX + name in metrics}
        return chosen

    def run(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return self._chosen(metrics, ORDINARY | {"peak_tflops": metrics.get(f"{PREFIX}{RUN}peak_tflops")})

    def _chosen(self, metrics: Mapping[str, float], known: Mapping[str, float | None]) -> dict[str, float]:
        self.names.update(metrics)
        if self._which == "main":
            return {name: metrics[name] for name in main(metrics)}
        values = {_metric(name): value for name, value in metrics.items()}
        known = {**known, "mfu_mixed": values.get("mfu")}
        return {name: value for name, value in metrics.items() if not _same(known.get(_metric(name)), value)}


def _same(known: float | None, value: float) -> bool:
    return known is not None and math.isclose(known, value, rel_tol=1e-5)


def _metric(name: str) -> str:
    return name.rpartition("/")[2]
