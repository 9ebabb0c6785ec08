"""`perf-callbacks profile` of traces and of journals. `printed/profile.txt` has its texts.

`WRITE_SNAPSHOTS=1 python -m pytest tests/commands/test_profile.py` writes the file anew.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import a_run
from journals import COUNT as SMALL, PROFILE, a_summary, steps
from kineto_events import annotation, function, kernel, launch, memcpy, operation, step, write
from snapshots import matches

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.module_records import OUTSIDE, ModuleWork

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
LAYER = ModuleWork(
    path="model.layers.*.a_module_with_a_long_name", modules=24, forward_flops=1_000_000, backward_flops=2_000_000,
    extra_flops=500_000, parameters=1536, activation_bytes=2_500_000,
)  # fmt: skip
MODEL = ModuleWork(path="", forward_flops=250_000, backward_flops=250_000, parameters=None, activation_bytes=0)
MODULES = (LAYER, MODEL, ModuleWork(path=OUTSIDE, modules=0, activation_bytes=4))
COUNT = replace(SMALL, model_flops=3_500_000, hardware_flops=4_000_000, modules=MODULES)
CASES = {
    "ranks with equal work": [[COUNT], [COUNT], []],
    "a profile": [[SMALL, steps(1, 20), PROFILE, a_summary()]],
    "FLOPs below zero": [[replace(COUNT, hardware_flops=-1)]],
}
"""By name: the records of each rank."""


def journal(directory, rank, records):
    directory.mkdir(parents=True, exist_ok=True)
    lines = [encode(Entry(float(place), record)) for place, record in enumerate([a_run(rank=rank), *records])]
    (directory / f"rank{rank}.jsonl").write_text("\n".join(lines) + "\n")


def test_texts_are_as_their_snapshot(tmp_path, capsys):
    paths = {"a trace": write(tmp_path / "trace.json.gz", EVENTS)}
    for name, ranks in CASES.items():
        paths[name] = tmp_path / name
        for rank, records in enumerate(ranks):
            journal(tmp_path / name / "perf_callbacks", rank, records)
    shown = ""
    for name, path in paths.items():
        for words in ([], ["--json"]):
            assert main(["profile", str(path), *words]) == 0
            shown += f"=== {' '.join([name, *words])}\n{capsys.readouterr().out}\n"
    assert matches(Path(__file__).with_name("printed") / "profile.txt", shown)


def test_an_impossible_value_is_no_crash(tmp_path):
    journal(tmp_path, 0, [replace(COUNT, hardware_flops=10**80)])
    assert main(["profile", str(tmp_path)]) == 0


@pytest.mark.parametrize("content", ["{", None])
def test_an_unreadable_trace_and_no_journal_cost_a_sentence(tmp_path, capsys, content):
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)
    assert main(["profile", str(path if content else tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
