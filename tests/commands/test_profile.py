"""`perf-callbacks profile`, by what it prints."""

import json
from pathlib import Path

from kineto_events import annotation, function, kernel, launch, memcpy, operation, step, write
from snapshots import matches

from perf_callbacks.commands import main

PRINTED = Path(__file__).with_name("printed")
EVENTS = [
    step(20, 0, 1000),
    step(21, 1000, 1000),
    function("train.py(12): train", 0, 2000),
    function("nn.Module: Model_0", 300, 300),
    annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 300),
    operation("aten::mm", 300, 20, shapes=[[64, 32], [32, 16]], flops=65536),
    launch(1, 300, 4),
    kernel("ampere_sgemm_128x64_nn", 310, 900, 1),
    operation("aten::to", 400, 20),
    launch(2, 400, 4),
    memcpy("HtoD", 1210, 100, 2),
    operation("c10d::allreduce_", 1000, 10),
    launch(3, 1001, 4),
    kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL\x1b[31m(int)", 1010, 600, 3, stream=20),
]


def test_a_trace_is_told_in_words(tmp_path, capsys):
    path = write(tmp_path / "trace.json.gz", EVENTS)
    assert main(["profile", str(path)]) == 0
    assert matches(PRINTED / "profile.txt", capsys.readouterr().out)


def test_json_is_the_record(tmp_path, capsys):
    path = write(tmp_path / "trace.json", EVENTS)
    assert main(["profile", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["timeline"], found["steps"], found["first_step"]) == ("device", 2, 20)
    assert found["operations"][0]["flops"] == 65536


def test_an_unreadable_trace_is_one_sentence_and_exit_status_2(tmp_path, capsys):
    path = tmp_path / "trace.json"
    path.write_text("{", encoding="utf-8")
    assert main(["profile", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
