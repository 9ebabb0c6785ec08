"""`perf-callbacks profile`, by what it prints."""

import json

from kineto_events import annotation, function, kernel, launch, memcpy, operation, step, write

from perf_callbacks.commands import main

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
    assert capsys.readouterr().out == (
        "The device (NVIDIA H100 80GB HBM3) was busy for 65% of 2 steps, each 1.00 ms.\n"
        "The device idled for 20% because the CPU was still running Python or launching\n"
        "kernels and for 15% because the program waited for the DataLoader. The busy time\n"
        "went to matrix products and convolutions (69%) and collectives (31%).\n"
        "Collectives ran for 30% of the time, 20% without computation beside them.\n"
        "\n"
        "Idle time, by cause (share of all time)\n"
        "  CPU ran Python or launched kernels  394 us  19.7%\n"
        "  waiting for the DataLoader          300 us  15.0%\n"
        "  gaps between launched kernels         6 us   0.3%\n"
        "\n"
        "Busy time, by class (share of busy time)\n"
        "  contraction: matrix products, convolutions  900 us  69.2%\n"
        "  communication                               400 us  30.8%\n"
        "\n"
        "Heaviest operations (share of busy time)\n"
        "  operation                                  class          calls    time  share\n"
        "  aten::mm                                   contraction        1  900 us  69.2%\n"
        "    64x32, 32x16, 65.5 kFLOP (100.0% of all FLOPs)\n"
        "  ncclDevKernel_AllReduce_Sum_f32_RING_LL?…  communication      1  400 us  30.8%\n"
        "\n"
        "Modules (share of busy time)\n"
        "  module       forward  backward  share\n"
        "  Model_0       900 us         0  69.2%\n"
        "  (no module)        —         0  30.8%\n"
    )


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
