"""`perf-callbacks memory`, by what it prints."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import a_run
from flops.test_conventions_counted import SMALL
from journals import COUNT as SHOWN
from snapshots import matches
from trainings.runs import unwrapped

from perf_callbacks.commands import main
from perf_callbacks.kernel.records.codec import Entry, encode
from perf_callbacks.kernel.records.machine_records import Memory, OutOfMemory, Use
from perf_callbacks.kernel.records.module_records import ModuleWork

PRINTED = Path(__file__).with_name("printed")
PARTS = Memory(
    step=2,
    device="cuda",
    source="operations",
    weights_gb=2.0,
    gradients_gb=2.0,
    optimizer_gb=4.0,
    activations_gb=1.5,
    temporary_gb=0.25,
    context_gb=0.5,
    peak_gb=10.0,
)


def journal(directory, records, *, rank=0, **run):
    (directory / "perf_callbacks").mkdir(exist_ok=True)
    lines = [encode(Entry(10.0 * place, record)) for place, record in enumerate([a_run(rank=rank, **run), *records])]
    (directory / f"perf_callbacks/rank{rank}.jsonl").write_text("\n".join(lines) + "\n")


def told(capsys, *words):
    assert main(["memory", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_parts_and_a_leak_are_shown_for_each_rank(tmp_path, capsys):
    growing = [Use(step=10 * place, resident_gb=3.0 + place / 18, anonymous_gb=2.0 + place / 36) for place in range(36)]
    journal(tmp_path, [PARTS, *growing])
    journal(tmp_path, [Memory(step=2, device="cpu", weights_gb=0.001), *growing[:2]], rank=1)
    assert matches(PRINTED / "memory.txt", told(capsys, tmp_path))


def test_a_clean_run_has_no_leak(tmp_path, capsys):
    journal(tmp_path, [Use(step=place, resident_gb=3.0, anonymous_gb=2.0) for place in range(40)])
    assert matches(PRINTED / "memory-clean.txt", told(capsys, tmp_path))


@pytest.mark.parametrize(("anonymous", "leak"), [(2.0, False), (None, None)])
def test_pages_of_files_are_no_leak(tmp_path, capsys, anonymous, leak):
    uses = [Use(step=place, resident_gb=3.0 + place / 36, anonymous_gb=anonymous) for place in range(36)]
    journal(tmp_path, uses)
    found = json.loads(told(capsys, tmp_path, "--json"))[0]
    assert found["leak"] is leak
    assert found["resident_gb_per_hour"] == pytest.approx(10.0)
    assert ("leaks unknown" in told(capsys, tmp_path)) is (leak is None)


def test_json(tmp_path, capsys):
    journal(tmp_path, [PARTS])
    assert matches(PRINTED / "memory.json", told(capsys, tmp_path, "--json"))


@pytest.mark.parametrize("contents", [None, "", "no\n"])
def test_without_a_journal_there_is_one_sentence(tmp_path, capsys, contents):
    if contents is not None:
        (tmp_path / "rank0.jsonl").write_text(contents)
    assert main(["memory", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("perf-callbacks memory: ")
    assert error.count("\n") == 1


COUNT = replace(
    SHOWN,
    modules=(
        ModuleWork(path="layers.*.mlp", modules=4, activation_bytes=1),
        ModuleWork(path="layers.*", modules=4),
        ModuleWork(path="layers.*.attention", modules=4, activation_bytes=4 * 10**8),
    ),
)
BATCH = replace(PARTS, micro_batch=8, micro_batches=1, headroom_gb=6.0)


def test_a_measured_step_says_what_would_fit(tmp_path, capsys):
    journal(tmp_path, [COUNT, BATCH])
    assert "  micro-batch 12 would fit (measured with 8)\n" in told(capsys, tmp_path)
    assert "micro-batch 18 would fit" in told(capsys, tmp_path, "--limit-gb", 15.5)


def test_below_the_memory_of_gradients_nothing_fits(tmp_path, capsys):
    journal(tmp_path, [COUNT, BATCH])
    text = told(capsys, tmp_path, "--limit-gb", 7)
    assert "  no micro-batch would fit for sure (measured with 8)\n" in text
    assert "checkpointing" not in text


def test_layers_to_checkpoint_for_a_larger_micro_batch(tmp_path, capsys):
    modules = [replace(line, activation_bytes=400 * 10**6) for line in COUNT.modules]
    journal(tmp_path, [replace(COUNT, modules=tuple(modules)), BATCH])
    found = json.loads(told(capsys, tmp_path, "--json", "--batch", 14))[0]
    assert (found["wanted_micro_batch"], found["layers"], found["layers_to_checkpoint"]) == (14, 4, 3)
    assert "for micro-batch 14, checkpointing 3 of 4 layers is enough" in told(capsys, tmp_path, "--batch", 14)
    assert "checkpointing" not in told(capsys, tmp_path)  # for twice the batch, even all layers aren't enough


def test_a_failed_allocation_is_shown(tmp_path, capsys):
    journal(tmp_path, [OutOfMemory(step=4, device="cuda", error="CUDA \x1b[2J", requested_gb=2.5)])
    assert "rank 0: out of memory on cuda after 4 steps: CUDA ?[2J\n" in told(capsys, tmp_path)
    assert json.loads(told(capsys, tmp_path, "--json"))[0]["out_of_memory"]["requested_gb"] == 2.5


CONFIG = {"model_type": "llama", **SMALL}


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "config.json"


def estimate(capsys, config, *words):
    return json.loads(told(capsys, config, "--seq", 24, "--cpu", "--dtype", "fp32", "--json", *words))


@pytest.mark.slow
def test_an_estimate_says_what_fits(config, capsys):
    one, two = [estimate(capsys, config, "--batch", size)["gb"]["peak"] for size in (1, 2)]
    limit = one + 10.5 * (two - one)
    found = estimate(capsys, config, "--batch", 3, "--limit-gb", limit, "--accumulate", 2, "--ranks", 2)
    assert (found["global_batch"], found["layers"], found["parameters"]) == (12, 2, 29344)
    assert found["largest_global_batch"] == 4 * found["fitting_micro_batch"]
    alone = estimate(capsys, config, "--limit-gb", limit)
    assert (alone["fitting_micro_batch"], alone["layers_to_checkpoint"]) == (11, 0)
    assert estimate(capsys, config, "--batch", 13, "--limit-gb", limit)["layers_to_checkpoint"] in {1, 2}
    assert estimate(capsys, config, "--batch", 200, "--limit-gb", limit)["layers_to_checkpoint"] is None


def test_an_estimate_as_text(config, capsys):
    words = "--seq", 24, "--batch", 2, "--checkpointing", "--ranks", 4, "--sharding", "fsdp", "--limit-gb", 0.0004
    text = unwrapped(told(capsys, config, *words))
    assert "config.json: 29,344 parameters, micro-batch 2 of 24 tokens, bf16, adamw, 2 of 2 layers checkpointed" in text
    assert "each of 4 ranks with fsdp" in text
    assert "  exchange " in text
    assert "simulated on fake tensors, divided among ranks by formulas" in text
    assert " would fit in 0.0004 GB, global batch " in text
    assert "micro-batch 2 fits without checkpointing" in text
    assert "global batch 8: micro-batch 2 x 1 accumulated x 4 data-parallel" in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "--seq: is missing"),
        (["--seq", "0"], "--seq: got 0, wanted a whole number from 1 to 1,000,000."),
        (["--seq", "9", "--ranks", "-1"], "--ranks: got -1"),
        (["--seq", "9", "--batch", "0"], "--batch: got 0"),
        (["--seq", "9", "--limit-gb", "nan"], "--limit-gb: got nan"),
    ],
)
def test_an_estimate_needs_possible_numbers(config, capsys, words, error):
    assert main(["memory", str(config), *words]) == 2
    assert f"perf-callbacks memory: {error}" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["no", "[]", '{"model_type": "t5"}', '{"model_type": "llama", "hidden_size": "x"}'])
def test_an_impossible_config_is_one_sentence(config, capsys, content):
    config.write_text(content)
    assert main(["memory", str(config), "--seq", "8"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_directory_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["memory", str(tmp_path / "gone")]) == 2
    assert "gone" in capsys.readouterr().err


def test_ranks_of_another_fit_are_left_out_and_missing_ones_named(tmp_path, capsys):
    journal(tmp_path, [PARTS], rank=1, run_id="old", world_size=2)
    journal(tmp_path, [PARTS], run_id="new", world_size=3, started_unix=86400.0)
    assert main(["memory", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert [line for line in printed.out.splitlines() if line.startswith("rank")] == ["rank 0, step 2, on cuda"]
    assert printed.err == f"{tmp_path}: ranks without a journal are left out: 1, 2\n"


def test_control_characters_of_a_journal_are_not_printed(tmp_path, capsys):
    journal(tmp_path, [Memory(step=2, device="cpu\x1b[2J\x1b]0;x\x07", weights_gb=2.0)])
    assert told(capsys, tmp_path).startswith("rank 0, step 2, on cpu?[2J?]0;x?\n")


def test_sizes_that_no_run_can_have_are_left_out(tmp_path, capsys):
    uses = [Use(step=place, resident_gb=place * 3e306) for place in range(1, 50)]
    journal(tmp_path, [Memory(step=2, device="cpu", weights_gb=-1.0, activations_gb=1e308, peak_gb=2.0), *uses])
    found = json.loads(told(capsys, tmp_path, "--json"))[0]
    assert (found["gb"], found["resident_gb"], found["leak"]) == ({"peak": 2.0}, None, None)
    assert "host memory" not in told(capsys, tmp_path)


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_values_that_no_run_can_have_are_said_to_be_such(tmp_path, capsys, words):
    journal(tmp_path, [])
    with (tmp_path / "perf_callbacks/rank0.jsonl").open("a") as file:
        for place in range(50):
            use = {"type": "use", "t": place * 1e-300, "step": place, "resident_gb": 1e28 * place}
            file.write(json.dumps(use) + "\n")
    assert main(["memory", str(tmp_path), *words]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.endswith(": the journal holds impossible values\n")
