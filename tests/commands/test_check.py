"""What a machine is told before anything is trained on it."""

import dataclasses
import json

import pytest

from perf_callbacks.checklist.gc_item import Garbage
from perf_callbacks.checklist.table import ITEMS
from perf_callbacks.commands import main
from perf_callbacks.host import environment


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
    monkeypatch.setattr(environment, "read", lambda **known: dataclasses.replace(read(**known), accelerator="cuda"))


def test_every_item_has_its_line_and_says_why(check):
    status, printed = check(_PEAK_TFLOPS="989.5")
    first, *items, peak = printed.splitlines()
    assert status == 0
    assert first == "A training on cpu would begin with"
    assert [line.split()[0] for line in items] == [item.slug for item in ITEMS]
    assert items[0].split(None, 1)[1].startswith("to be applied   automatic, thresholds ")
    assert items[0].endswith("no collection falls into the midst of a step, and all ranks collect at the same one")
    assert peak == "MFU would be of a peak in TFLOPS: 989.5 in any number format (peak_tflops=989.5)"


def test_a_rank_that_is_none_makes_no_difference(check, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "first")
    assert check()[0] == 0


def test_advice_that_needs_no_run_is_left_to_do(check, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    status, printed = check(_PEAK_TFLOPS="989.5")
    assert status == 1
    assert "  advice: CUDA_LAUNCH_BLOCKING=1 waits for each kernel; try unsetting" in printed.splitlines()
    (finding,) = json.loads(check("--json", _PEAK_TFLOPS="989.5")[1])["findings"]
    assert (finding["cause"], finding["share"], finding["remedy"]) == ("sync", None, "unsetting CUDA_LAUNCH_BLOCKING")


def test_json_holds_items_and_peak(check):
    status, printed = check("--json", _PEAK_TFLOPS="bf16=989.5,fp32=67")
    found = json.loads(printed)
    assert (status, found["device"]) == (0, "cpu")
    assert [(item["item"], item["status"]) for item in found["items"]] == [
        ("gc", "to be applied"),
        ("loaders", "not applicable"),
    ]
    assert {*found["items"][0]} == {"item", "status", "before", "after", "why", "saved_seconds"}
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
    assert "\nMFU would be of a peak measured on cpu with 1 thread" in check()[1]


def test_a_device_without_a_peak_is_something_left_to_do(check):
    status, printed = check(_MEASURE_PEAK="off")
    assert status == 1
    assert "\nThere would be no MFU: No dense peak is known for 'cpu': set peak_tflops to " in printed
    assert json.loads(check("--json")[1])["peak"] is None


@pytest.mark.usefixtures("accelerator")
def test_so_is_an_item_that_only_advises(check):
    status, printed = check(_LOADERS="advise", _PEAK_TFLOPS="989.5")
    assert status == 1
    assert "loaders  advised        pinned where a loader says so -> DataLoader(..., pin_memory=True)" in printed
    assert check(_LOADERS="apply")[0] == 0


def test_so_is_an_item_that_fails_and_the_others_are_shown(check, monkeypatch):
    def fail(*_):
        raise OSError("no such thing")

    monkeypatch.setattr(Garbage, "decide", fail)
    status, printed = check(_PEAK_TFLOPS="989.5")
    assert status == 1
    assert "gc       failed          OSError: no such thing" in printed
    assert "loaders  not applicable" in printed


@pytest.mark.parametrize("off", [{"_CHECKLIST": "off"}, {"": "0"}])
def test_what_is_turned_off_is_said_to_be(check, off):
    status, printed = check(**off)
    assert status == 0
    assert "\n  no checklist: it is turned off\n" in printed
    assert ("\nThere would be no MFU: PERF_CALLBACKS=0\n" in printed) == ("" in off)


def test_without_flops_there_is_no_mfu_and_nothing_left_to_do(check):
    status, printed = check(_FLOPS="off")
    assert status == 0
    assert printed.endswith("\nThere would be no MFU: flops=off\n")


def test_an_item_that_is_skipped_says_so(check):
    _, printed = check(_SKIP="gc", _PEAK_TFLOPS="989.5")
    assert "gc       skipped         automatic, thresholds" in printed
    assert "; skip names gc\n" in printed


def test_a_setting_that_has_no_effect_is_told(check):
    assert check(_NVTX="1", _PEAK_TFLOPS="989.5")[1].endswith("nvtx=True is not built yet and has no effect.\n")


def test_a_setting_that_makes_no_sense_exits_with_2(monkeypatch, capsys):
    monkeypatch.setenv("PERF_CALLBACKS_GC", "now")
    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith("perf-callbacks check: PERF_CALLBACKS_GC: got 'now', wanted one of ")
