"""`perf-callbacks profile`, by what it prints."""

import json
from dataclasses import replace

import pytest
from fakes import a_run
from journals import COUNT as SMALL, PROFILE, a_summary, steps

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.module_records import OUTSIDE, ModuleWork

MODULES = (
    ModuleWork(
        path="model.layers.*.a_module_with_a_long_name",
        modules=24,
        forward_flops=1_000_000,
        backward_flops=2_000_000,
        extra_flops=500_000,
        parameters=1536,
        activation_bytes=2_500_000,
    ),
    ModuleWork(path="", forward_flops=250_000, backward_flops=250_000, parameters=None, activation_bytes=0),
    ModuleWork(path=OUTSIDE, modules=0, activation_bytes=4),
)
COUNT = replace(SMALL, model_flops=3_500_000, hardware_flops=4_000_000, modules=MODULES)


def journal(directory, *records, rank=0):
    (directory / "perf_callbacks").mkdir(exist_ok=True)
    lines = [encode(Entry(float(place), record)) for place, record in enumerate([a_run(rank=rank), *records])]
    (directory / f"perf_callbacks/rank{rank}.jsonl").write_text("\n".join(lines) + "\n")


def told(capsys, *words):
    assert main(["profile", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_ranks_with_equal_work_share_a_table(tmp_path, capsys):
    journal(tmp_path, COUNT)
    journal(tmp_path, COUNT, rank=1)
    journal(tmp_path, rank=2)
    assert told(capsys, tmp_path) == (
        "ranks 0, 1, step 2, counted: 4.00 M FLOPs executed, 3.50 M of the model\n"
        "  module                        modules   FLOPs  share  parameters  activations\n"
        "  …*.a_module_with_a_long_name       24  3.50 M  87.5%       1,536      2.50 MB\n"
        "  (the model itself)                  1   500 k  12.5%           —          0 B\n"
        "  (no module)                         —       0   0.0%           0          4 B\n"
        "rank 2: no FLOPs by module: no step was counted by module, or counting is off\n"
    )


def test_json_has_each_rank(tmp_path, capsys):
    journal(tmp_path, COUNT)
    journal(tmp_path, rank=1)
    first, second = json.loads(told(capsys, tmp_path, "--json"))
    assert first["modules"][0]["extra_flops"] == 500_000
    assert (first["model_flops"], first["hardware_flops"], first["source"]) == (3_500_000, 4_000_000, "counted")
    assert second == {
        "rank": 1,
        "step": None,
        "source": None,
        "model_flops": None,
        "hardware_flops": None,
        "modules": [],
        "profiles": [],
    }


def test_a_profile_shows_time_and_mfu_of_all_modules(tmp_path, capsys):
    journal(tmp_path, SMALL, steps(1, 20), PROFILE, a_summary())
    shown = told(capsys, tmp_path)
    assert shown.startswith("rank 0, steps 5 to 6: profile0-5.json.gz\nThe device (NVIDIA H100 80GB HBM3) was busy")
    assert (
        "Modules (share of busy time; MFU while the module was busy)\n"
        "  module              forward  backward  share      MFU\n"
        "  lm_head              200 ms    300 ms  50.0%  ≥ 30.0%\n"
        "  layers.*.mlp         200 ms         0  20.0%  ≥ 25.0%\n"
        "  (optimizer)               —         —  20.0%        —\n"
        "  (the model itself)   100 ms         0  10.0%        —\n"
    ) in shown
    [found] = json.loads(told(capsys, tmp_path, "--json"))
    assert found["profiles"][0]["modules"][0] == {
        "name": "lm_head",
        "seconds": 0.5,
        "backward_seconds": 0.3,
        "mfu": pytest.approx(0.3),
        "at_least": True,
    }
