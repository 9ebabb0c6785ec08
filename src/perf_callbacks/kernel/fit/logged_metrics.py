"""Chooses the metrics that loggers and consoles get. The journal has all metrics."""

import math
from collections.abc import Iterable, Mapping

from perf_callbacks.kernel.records.metric_table import METRICS, PREFIX, RUN

MAIN = tuple([metric.name for metric in METRICS if metric.main])
"""Metrics of a console; samples per second only if tokens are unknown."""

ORDINARY = {metric.name: metric.usual for metric in METRICS if metric.constant}
"""Metrics that stay constant in a run, with their usual values; of `peak_tflops`, that is the first value."""


def main(names: Iterable[str]) -> list[str]:
    """Return the metrics for a console, the most important first. Names that don't begin with `perf/` are ignored.

    >>> main(["perf/mfu", "perf/hfu", "loss", "perf/samples_per_second", "perf/step_time"])
    ['perf/step_time', 'perf/samples_per_second', 'perf/mfu']
    """
    ours = {_metric(name): name for name in names if name.startswith(PREFIX)}
    if "tokens_per_second" in ours:
        ours.pop("samples_per_second", None)
    return [ours[metric] for metric in MAIN if metric in ours]


def hidden(names: Iterable[str], console: str) -> list[str]:
    """Return our metrics that a console leaves out, by the value of the setting `console`.

    >>> hidden(["perf/mfu", "perf/hfu"], "main")
    ['perf/hfu']
    """
    ours = [*names] if console != "all" else []
    shown = main(ours) if console == "main" else []
    return [name for name in ours if name not in shown]


def bar(row: Mapping[str, float], console: str) -> dict[str, float]:
    left_out = hidden(row, console)
    line = (PREFIX + "step_time", PREFIX + "mfu") if console == "main" else row
    return {name: row[name] for name in line if name in row and name not in left_out}


class Logged:
    """Chooses metrics for loggers. Constant ones are logged when they change, `mfu_mixed` if it differs from `mfu`."""

    def __init__(self, which: str) -> None:
        self._which = which
        self.names = set[str]()
        """All our metrics so far. Any other name that begins with `perf/` is the program's own."""
        self._last: dict[str, float | None] = dict(ORDINARY)

    def row(self, metrics: Mapping[str, float]) -> dict[str, float]:
        if self._last["peak_tflops"] is None:
            self._last["peak_tflops"] = metrics.get(PREFIX + "peak_tflops")
        chosen = self._chosen(metrics, self._last)
        self._last |= {name: metrics[PREFIX + name] for name in ORDINARY if PREFIX + name in metrics}
        return chosen

    def run(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return self._chosen(metrics, ORDINARY | {"peak_tflops": metrics.get(f"{PREFIX}{RUN}peak_tflops")})

    def _chosen(self, metrics: Mapping[str, float], usual: Mapping[str, float | None]) -> dict[str, float]:
        self.names.update(metrics)
        if self._which == "main":
            return {name: metrics[name] for name in main(metrics)}
        values = {_metric(name): value for name, value in metrics.items()}
        usual = {**usual, "mfu_mixed": values.get("mfu")}
        return {name: value for name, value in metrics.items() if not _same(usual.get(_metric(name)), value)}


def _same(usual: float | None, value: float) -> bool:
    return usual is not None and math.isclose(usual, value, rel_tol=1e-5)


def _metric(name: str) -> str:
    return name.rpartition("/")[2]
