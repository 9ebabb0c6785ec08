"""Files of traces: whole, gzipped, damaged, foreign and too large."""

import gzip
import json

import pytest
from kineto_events import kernel, trace, write
from rows import each_row

from perf_callbacks.profiles.reduction import reduce_file
from perf_callbacks.profiles.trace_events import TraceError, decode, number, read

EVENTS = [kernel("gemm", 10, 5)]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_trace_is_read_plain_and_gzipped(tmp_path, name):
    found = read(write(tmp_path / name, EVENTS))
    assert [one.name for one in found.traceEvents] == ["gemm"]
    assert found.deviceProperties[0].name == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("name", [b"a\tb", b"\xff\xfe", b"\\ud83d"])
def test_names_that_kineto_did_not_escape_are_read(name):
    assert len(decode(b'{"traceEvents": [{"ph": "X", "name": "' + name + b'", "ts": NaN}]}').traceEvents) == 1


def sentence(path, **limits):
    with pytest.raises(TraceError) as caught:
        reduce_file(path, **limits)
    return str(caught.value).removeprefix(f"{path}: ")


def test_each_reason_is_a_sentence(tmp_path):
    whole = write(tmp_path / "whole.json.gz", EVENTS)
    torn, text = tmp_path / "torn.json.gz", tmp_path / "text.json"
    torn.write_bytes(whole.read_bytes()[:-20])
    assert sentence(torn) == "the gzip file is damaged or ends early"
    torn.write_bytes(whole.read_bytes()[:30] + b"????" + whole.read_bytes()[34:])
    assert sentence(torn) == "the gzip file is damaged or ends early"
    text.write_bytes(json.dumps(trace(EVENTS)).encode()[:-9])
    assert sentence(text).startswith("no trace of torch.profiler can be read from this file: ")
    text.write_text('{"weights": [1]}', encoding="utf-8")
    assert sentence(text).endswith("Object missing required field `traceEvents`")
    text.write_bytes(b"")
    assert sentence(text).startswith("no trace of torch.profiler can be read from this file: ")
    text.write_text("[" * 100_000, encoding="utf-8")
    assert sentence(text).startswith("no trace of torch.profiler can be read from this file: ")
    assert sentence(write(text, [])) == "the trace has neither kernels of a device nor operations of a CPU"
    assert sentence(tmp_path) == "Is a directory"
    assert sentence(tmp_path / "nowhere.json") == "No such file or directory"


def test_a_trace_that_is_too_large_is_not_unpacked(tmp_path):
    path = tmp_path / "large.json.gz"
    path.write_bytes(gzip.compress(b" " * 50_000_000))
    assert sentence(path, most_bytes=20_000_000) == (
        "the trace has more than 0.02 GB of JSON. Record fewer steps, or no stacks."
    )


@each_row(("value", "expected"), [("12.5", 12.5), (3, 3.0), (True, None), ("a", None), (10**400, None)])
def test_a_number_is_finite_or_unknown(value, expected):
    assert number(value) == expected
    assert number(float("inf")) is None


def test_the_text_is_safe_for_a_terminal(tmp_path):
    with pytest.raises(TraceError, match=r"^[ -~]*$"):
        reduce_file(tmp_path / "\x1b[2J.json")
