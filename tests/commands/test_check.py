"""What a machine is told before anything is trained on it."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest
import torch
from launching import PATHS
from trainings.runs import unwrapped

from perf_callbacks import checklist
from perf_callbacks.checklist import ITEMS
from perf_callbacks.commands import check as command, main
from perf_callbacks.kernel.fit import environment


@pytest.fixture
def check(monkeypatch, capsys):
    """The exit status, and what was printed."""

    def run(*words, **environ):
        for name, value in environ.items():
            monkeypatch.setenv(f"PERF_CALLBACKS{name}", value)
        status = main(["check", *words])
        return status, capsys.readouterr().out

    return run


@pytest.fixture
def accelerator(monkeypatch):
    """One that copies from pinned memory, as far as items can tell."""
    read = environment.read
    facts = {"accelerator": "cuda", "pinned_copies": True}
    monkeypatch.setattr(environment, "read", lambda **known: dataclasses.replace(read(**known), **facts))


def test_a_switch_without_effect_has_a_line(check, monkeypatch):
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    assert "has no effect" not in check()[1]
    assert "PERF_CALLBACKS=1 has no effect here. `perf-callbacks status` says why." in check(**{"": "1"})[1]


def test_every_item_has_its_line_and_says_why(check):
    status, printed = check(_PEAK_TFLOPS="989.5")
    _, setting, first, *lines = unwrapped(printed).splitlines()
    items, (peak, *table) = lines[: len(ITEMS)], lines[len(ITEMS) :]
    assert status == 0
    assert setting == "  peak_tflops=989.5 (PERF_CALLBACKS_PEAK_TFLOPS)"
    assert first == "Training on cpu would begin with"
    assert [line.split()[0] for line in items] == [item.slug for item in ITEMS]
    assert items[0].split(None, 1)[1].startswith("to be applied   automatic, thresholds ")
    assert items[0].endswith("no collection interrupts a step, and all ranks collect at the same step")
    assert peak == "MFU would use a peak of 989.5 TFLOPS in any number format (peak_tflops=989.5)"
    assert table[0].split() == ["rank", "GPU", "NUMA", "CPUs", "in", "a", "training", "threads", "affinity"]
    assert [line.split()[0] for line in table[1:]] == ["0"]


def test_a_rank_that_is_none_makes_no_difference(check, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "first")
    assert check()[0] == 0


def test_advice_that_needs_no_run_is_left_to_do(check, monkeypatch):
    monkeypatch.setattr(torch, "is_anomaly_enabled", lambda: True)
    status, printed = check(_PEAK_TFLOPS="989.5")
    assert status == 1
    (finding,) = json.loads(check("--json", _PEAK_TFLOPS="989.5")[1])["findings"]
    assert (finding["cause"], finding["share"]) == ("host", None)
    assert f"  advice: {finding['evidence']}; try {finding['remedy']}" in " ".join(printed.split("\n    "))


def test_json_holds_items_and_peak(check):
    status, printed = check("--json", _PEAK_TFLOPS="bf16=989.5,fp32=67")
    found = json.loads(printed)
    assert (status, found["device"]) == (0, "cpu")
    assert [(item["item"], item["status"]) for item in found["items"]] == [
        ("gc", "to be applied"),
        ("loaders", "not applicable"),
        ("affinity", "not applicable"),
    ]
    assert {*found["items"][0]} == {"item", "status", "before", "after", "why"}
    assert found["settings"] == {"peak_tflops": {"value": "bf16=989.5,fp32=67", "origin": "PERF_CALLBACKS_PEAK_TFLOPS"}}
    assert found["peak"] == {
        "tflops": {"bfloat16": 989.5, "float32": 67.0},
        "measured": False,
        "source": "peak_tflops=bf16=989.5,fp32=67",
    }


def test_a_cpu_is_measured_as_in_a_training(check):
    status, printed = check("--json")
    peak = json.loads(printed)["peak"]
    assert status == 0
    assert peak["measured"]
    assert peak["tflops"]["float32"] > 0
    assert re.search(
        r"\nMFU would use a peak of [\d.,]+ [MGT]FLOPS in float32 \(measured on cpu with 1 thread",
        unwrapped(check()[1]),
    )


def test_every_line_fits_into_80_columns(check):
    _, printed = check()
    assert max(map(len, printed.splitlines())) <= 80


def test_a_device_without_a_peak_is_something_left_to_do(check):
    status, printed = check(_MEASURE_PEAK="off")
    assert status == 1
    assert "There would be no MFU: No dense peak is known for 'cpu': set peak_tflops" in printed
    assert json.loads(check("--json")[1])["peak"] is None


@pytest.mark.usefixtures("accelerator")
def test_so_is_an_item_that_only_advises(check):
    status, printed = check(_LOADERS="advise", _PEAK_TFLOPS="989.5")
    assert status == 1
    assert "loaders   advised         pinned if the loader says so -> DataLoader(..., pin_memory=True)" in unwrapped(
        printed
    )
    assert check(_LOADERS="apply")[0] == 0


def test_so_is_an_item_that_fails_and_the_others_are_shown(check, monkeypatch):
    def fail(*_):
        raise OSError("no such thing")

    gc, *others = checklist.ITEMS
    monkeypatch.setattr(checklist, "ITEMS", (gc._replace(decide=fail), *others))
    status, printed = check(_PEAK_TFLOPS="989.5")
    assert status == 1
    assert "gc        failed          OSError: no such thing" in printed
    assert "loaders   not applicable" in printed


@pytest.mark.parametrize("off", [{"_CHECKLIST": "off"}, {"": "0"}])
def test_what_is_turned_off_is_said_to_be(check, off):
    status, printed = check(**off)
    assert status == 0
    assert "\n  the checklist is turned off\n" in printed
    assert ("\nThere would be no MFU: PERF_CALLBACKS=0\n" in printed) == ("" in off)


def test_without_flops_there_is_no_mfu_and_nothing_left_to_do(check):
    status, printed = check(_FLOPS="off")
    assert status == 0
    assert "\nThere would be no MFU: flops=off\n" in printed


def test_an_item_that_is_skipped_says_so(check):
    _, printed = check(_SKIP="gc", _PEAK_TFLOPS="989.5")
    assert "gc        skipped         automatic, thresholds" in printed
    assert "; skip names gc\n" in printed


def test_a_setting_of_a_file_is_told_with_its_line(check, tmp_path):
    path = tmp_path / "perf.yaml"
    path.write_text("# ours\nwindow: 20\nflops: off\n")
    _, printed = check(_CONFIG=str(path), _FLOPS="estimate")
    assert printed.startswith(f"""\
Settings from outside:
  flops=estimate (PERF_CALLBACKS_FLOPS)
  window=20 ({path}, line 2)
Training on cpu would begin with
""")


def test_a_setting_that_makes_no_sense_exits_with_2(monkeypatch, capsys):
    monkeypatch.setenv("PERF_CALLBACKS_GC", "now")
    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith("perf-callbacks check: PERF_CALLBACKS_GC: got 'now', wanted one of ")


@pytest.fixture
def together(monkeypatch):
    """This is the first of three ranks, which hand in what is given."""

    def of(answer):
        monkeypatch.setenv("LOCAL_RANK", "0")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
        monkeypatch.setattr(command, "_hand_in", lambda note, local: answer(note))

    return of


def ranks_of(printed):
    return [line.split() for line in printed.splitlines()[-3:]]


def test_the_first_rank_of_a_machine_prints_for_all(check, together):
    advised = {"status": "advised", "rank": 1, "gpu": "0000:1b:00.0", "numa_nodes": "1"}
    together(lambda note: [note, json.dumps(json.loads(note) | advised), None])
    status, printed = check(_PEAK_TFLOPS="989.5")
    assert status == 1
    first, second, third = ranks_of(printed)
    assert (first[0], second[:3], third) == ("0", ["1", "0000:1b:00.0", "1"], ["2", *["—"] * 5, "no", "answer"])
    assert [rank["rank"] for rank in json.loads(check("--json", _PEAK_TFLOPS="1")[1])["ranks"]] == [0, 1, 2]


def test_the_others_print_nothing(check, together):
    together(lambda note: None)
    assert check() == (0, "")


def test_ranks_that_can_not_meet_print_for_themselves(check, together):
    def no(note):
        raise RuntimeError("no store")

    together(no)
    status, printed = check(_PEAK_TFLOPS="989.5")
    assert (status, [line[:1] for line in ranks_of(printed)[1:]]) == (0, [["rank"], ["0"]])


@pytest.mark.slow
def test_under_torchrun_there_is_one_table():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    check = "from perf_callbacks.commands import main; main(['check', '--json'])"
    environ = {**os.environ, "PYTHONPATH": PATHS, "PERF_CALLBACKS_PEAK_TFLOPS": "1"}
    done = subprocess.run([*torchrun, sys.executable, "-c", check], env=environ, stdout=subprocess.PIPE, check=True)
    assert [(rank["rank"], rank["gpu"]) for rank in json.loads(done.stdout)["ranks"]] == [(0, None), (1, None)]
