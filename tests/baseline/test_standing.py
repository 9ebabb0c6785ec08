"""The standing of a run to earlier runs, and its line."""

from dataclasses import replace
from pathlib import Path

from snapshots import matches

from perf_callbacks.baseline.standing import against_runs, line
from perf_callbacks.report.run_figures import RunFigures


def a_run(seconds=0.1, *, data=0.003, torch="2.14", **changes):
    usual = {
        "run_id": "a", "parameters": 1000, "batch": 8, "device": "cpu", "steps": 100, "step_seconds": seconds,
        "stage_seconds": {"data_time": data, "forward_time": 0.05}, "samples_per_second": 8 / seconds,
        "tokens_per_second": 800 / seconds, "no_cpu_share": 0.001, "others_share": 0.01, "idle_share": 0.5,
        "versions": {"torch": torch, "python": "3.11"},
    }  # fmt: skip
    return RunFigures(**usual | changes)


LAST = [a_run(0.1 * factor) for factor in (0.99, 1.0, 1.01, 1.0, 1.0)]
BUSY = {"no_cpu_share": 0.4, "others_share": 0.7, "idle_share": 0.0}
PACKAGES = [f"package{number}" for number in range(7)]


def known(**changes):
    """The last runs, with these changes of all."""
    return [replace(run, **changes) for run in LAST]


CASES = {
    "a slower release of a dependency": (a_run(0.132, data=0.011, torch="2.15"), LAST),
    "a faster run": (a_run(0.08), LAST),
    **{f"a step of {seconds} s": (a_run(seconds), LAST) for seconds in (0.1, 0.103, 0.098, 0.104)},
    "a change within the interval": (a_run(0.132), [a_run(0.1 * factor) for factor in (0.8, 1.2, 1.0, 0.9, 1.1)]),
    "no run": (a_run(1.0), []),
    "a single run": (a_run(1.0), LAST[:1]),
    **{
        f"another {name}": (a_run(0.2, **{name: value}), LAST)
        for name, value in {
            "parameters": 500, "batch": 4, "device": "cuda", "world_size": 2, "devices": 2, "samples_per_second": 1.0,
        }.items()
    },
    "a busier machine": (a_run(0.15, **BUSY), LAST),
    "a change beyond the load": (a_run(2.0, **BUSY), LAST),
    "disturbed runs": (a_run(0.132), [a_run(0.3, no_cpu_share=0.5), a_run(0.4, no_cpu_share=0.6), *LAST]),
    **{f"an earlier step of {value}": (a_run(0.132), [replace(LAST[0], step_seconds=value), *LAST])
       for value in (0.0, -1.0, 1e300, None)},
    "an impossible step": (replace(LAST[0], step_seconds=1e300), LAST),
    **{f"loading of {value}": (a_run(0.132, data=0.042), [a_run(data=value), *LAST]) for value in (-1e300, 1e300)},
    "control characters": (a_run(0.132, torch="2.15"), known(versions={"torch": "2.14\x1b[2J"})),
    "many new versions": (
        a_run(0.15, versions=dict.fromkeys(PACKAGES, "2")), known(versions=dict.fromkeys(PACKAGES, "1")),
    ),
}  # fmt: skip
"""By name: a run, and the last runs."""


def test_lines_are_as_their_snapshot():
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    shown = ""
    for name, (run, last) in CASES.items():
        result = against_runs(run, last)
        shown += f"{name}: {'no line' if result is None else f'{line(result)} Slower: {result.slower}'}\n"
    assert matches(Path(__file__).with_name("lines.txt"), shown)
