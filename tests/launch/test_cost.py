"""Cost of the callback, measured in turns."""

import json
import subprocess
from dataclasses import asdict

import pytest

from perf_callbacks import commands
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.launch.cost import processes
from perf_callbacks.launch.cost.turns import (
    COUNTED,
    SETTLING,
    STEPS,
    Cost,
    MedianInterval,
    Stopwatch,
    TrainingTurn,
    interval,
    measure,
)

COST = Cost(
    integration="loop",
    turns=24,
    step_seconds=196e-6,
    step=MedianInterval(median=30.7e-6, low=27.3e-6, high=34.3e-6),
    control=MedianInterval(median=-0.8e-6, low=-3.5e-6, high=4.6e-6),
    cpu=MedianInterval(median=66e-6, low=61.4e-6, high=72.7e-6),
    run=MedianInterval(median=0.0565, low=0.05, high=0.06),
)


def clock_of(times):
    return iter(times).__next__


def test_the_first_steps_and_the_ends_of_a_turn_are_not_compared():
    ends = [10.0 + 5.0 * step for step in range(SETTLING)]
    ends += [ends[-1] + 2.0 * step for step in range(1, COUNTED + 1)]
    stopwatch = Stopwatch(clock_of([0.0, *ends, ends[-1] + 7.0]), clock_of([100.0, 100.0 + COUNTED]))
    for _ in range(STEPS):
        stopwatch.step_ended()
    assert stopwatch.turn() == TrainingTurn(
        quiet_seconds=2.0, cpu_seconds=1.0, other_seconds=10.0 + 5.0 * (SETTLING - 1) + 7.0
    )


def test_turns_with_the_callback_are_compared_with_the_turns_around_them():
    count = iter(range(1000))

    def turn(*, armed):
        drift = next(count) * 1e-6  # the machine becomes slower all the time
        return TrainingTurn(
            quiet_seconds=1e-3 + drift + 2e-5 * armed, cpu_seconds=1e-3 + 5e-5 * armed, other_seconds=1.0 + 0.25 * armed
        )

    cost = measure("loop", turn, 4.0, clock_of(float(second) for second in range(100)))
    assert cost.turns == 6
    for found, added in ((cost.step, 2e-5), (cost.cpu, 5e-5), (cost.run, 0.25)):
        assert [found.low, found.median, found.high] == pytest.approx([added] * 3)
    assert cost.control.median == pytest.approx(1e-6)


def test_three_turns_are_taken_however_long_they_last():
    same = TrainingTurn(quiet_seconds=1.0, cpu_seconds=1.0, other_seconds=1.0)
    assert measure("loop", lambda *, armed: same, 1.0, clock_of(range(0, 1000, 10))).turns == 3


def test_an_interval_holds_its_median():
    found = interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.low, found.median) == (1.0, 3.0)
    assert found.high == 100.0


def test_the_table_shows_microseconds():
    heading, line = processes.table([COST])
    assert heading.split() == [
        "step",
        "added",
        "to",
        "it",
        "control",
        "added",
        "CPU",
        "time",
        "once",
        "per",
        "run",
        "turns",
    ]
    assert "30.7 [27.3, 34.3] us" in line
    assert "56.5 ms" in line


def test_the_command_prints_the_cost(monkeypatch, capsys):
    monkeypatch.setattr(
        processes, "measure", lambda names, seconds: [COST] if (names, seconds) == (["loop"], 12) else []
    )
    monkeypatch.setattr(processes, "installed", lambda: ["loop"])
    assert commands.main(["check", "--cost"]) == 0
    assert "A step of 100 ms takes at most 0.073% longer" in capsys.readouterr().out
    assert commands.main(["check", "--cost", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [asdict(COST)]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_seconds_that_make_no_sense_are_refused(seconds, capsys):
    assert commands.main(["check", f"--cost={seconds}"]) == 2
    assert "must be positive" in capsys.readouterr().err


@pytest.mark.slow
def test_a_process_that_fails_says_why(monkeypatch):
    monkeypatch.setenv("PERF_CALLBACKS_GC", "nonsense")
    with pytest.raises(ConfigError, match=r"loop: .*nonsense"):
        [*processes.measure(["loop"], 0.1)]


def test_variables_of_the_job_do_not_arm_the_turns(monkeypatch):
    found = {}

    def run(_command, *, env, **_):
        found.update(env)
        return subprocess.CompletedProcess([], 0, json.dumps(asdict(COST)), "")

    monkeypatch.setattr(subprocess, "run", run)
    variables = {"PERF_CALLBACKS": "1", "RANK": "3", "WORLD_SIZE": "8", "SLURM_NTASKS": "8"}
    variables |= {"PERF_CALLBACKS_WINDOW": "20", "CUDA_VISIBLE_DEVICES": "3,4"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [*processes.measure(["loop"], 1.0)] == [COST]
    assert not {"PERF_CALLBACKS", "RANK", "WORLD_SIZE", "SLURM_NTASKS"} & found.keys()
    assert (found["PERF_CALLBACKS_WINDOW"], found["CUDA_VISIBLE_DEVICES"]) == ("20", "3")


@pytest.mark.slow
@pytest.mark.parametrize("name", processes.INTEGRATIONS)
def test_a_real_training_is_measured(name, tmp_path):
    (cost,) = processes.measure([name], 0.1)
    assert cost.turns >= 3
    assert cost.step_seconds > 0
    assert not [*tmp_path.iterdir()]
