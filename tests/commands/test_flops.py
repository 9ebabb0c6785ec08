"""The calculator, by what it prints."""

import json
from pathlib import Path

import pytest
from snapshots import matches

from perf_callbacks.commands import main
from perf_callbacks.flops.calculator.conventions import CONVENTIONS

GPT3 = "--layers 96 --hidden 12288 --heads 96 --vocab 51200 --seq 2048"
KORTHIKANTI_175B = f"{GPT3} --batch 64 --gpus 64 --step-time 13.75"
PALM = (
    "--layers 118 --hidden 18432 --heads 48 --head-dim 256 --params 540.35e9 --seq 2048 "
    "--gpus 6144 --tokens-per-second-per-gpu 38.7858"
)
BLOOM = (
    "--layers 70 --hidden 14336 --heads 112 --vocab 250880 --tied --params 176247271424 "
    "--seq 2048 --batch 2048 --gpus 384 --recompute full"
)
BOOK = "--params 52e9 --gpus 64 --batch 1024 --step-time 127 --seq 2048"


@pytest.fixture
def calculate(capsys):
    def calculate(words, *path):
        assert main(["flops", *words.split(), *path, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["conventions"]

    return calculate


@pytest.fixture
def say(capsys):
    """Standard output and error of a command line, with the exit status."""

    def say(words, path=()):
        try:
            status = main(["flops", *words.split(), *path])
        except SystemExit as exit_:
            status = exit_.code
        done = capsys.readouterr()
        return status, done.out, done.err

    return say


def test_published_figures_beside_the_page_come_out(calculate):
    bloom = calculate(f"{BLOOM} --step-time 104")
    rates = [bloom[name]["hardware_flops_per_step"] / 104 / 384 / 1e12 for name in ("megatron-eq3", "matmul", "6n")]
    assert rates == pytest.approx([150.8, 150.8, 148.1], abs=0.2)
    palm = calculate(f"{PALM} --peak-tflops 275 --recompute full")
    assert 100 * palm["6n"]["hfu"] == pytest.approx(61.0, abs=0.2)


def test_every_convention_says_the_same_five_things(calculate):
    results = calculate(f"{KORTHIKANTI_175B} --peak-tflops 312")
    keys = ["model_flops_per_step", "hardware_flops_per_step", "model_tflops_per_gpu", "mfu", "hfu"]
    assert list(results) == [*CONVENTIONS]
    assert all(list(result) == keys for result in results.values())
    assert all(0 < result["mfu"] <= result["hfu"] < 1 for result in results.values())


def test_a_figure_outside_of_a_convention_is_null(calculate):
    results = calculate(f"{KORTHIKANTI_175B} --peak-tflops 312 --recompute selective")
    said = [name for name, result in results.items() if result["hfu"] is not None]
    assert said == ["matmul", "korthikanti", "korthikanti-exact"]
    results = calculate(f"{KORTHIKANTI_175B} --recompute full")
    said = [name for name, result in results.items() if result["hardware_flops_per_step"] is not None]
    assert said == ["matmul", "6n", "megatron-eq3", "korthikanti", "korthikanti-exact", "llm-foundry"]


def test_6n_alone_knows_a_model_by_its_size(calculate):
    results = calculate(BOOK)
    assert [name for name, result in results.items() if result["model_flops_per_step"] is not None] == ["6n"]
    assert results["6n"]["hardware_flops_per_step"] == results["6n"]["model_flops_per_step"]


@pytest.mark.parametrize("missing", ["--peak-tflops 312", "--batch 64 --step-time 13.75", ""])
def test_without_a_time_or_a_peak_there_are_flops_and_no_mfu(calculate, missing):
    result = calculate(f"{GPT3} {missing}")["matmul"]
    assert result["model_flops_per_step"] > 0
    assert (result["mfu"], result["hfu"]) == (None, None)


def test_tokens_per_second_do_as_well_as_the_step_time(calculate):
    by_time = calculate(f"{KORTHIKANTI_175B} --peak-tflops 312")
    rate = 64 * 2048 / 13.75 / 64
    by_rate = calculate(f"{GPT3} --batch 64 --gpus 64 --tokens-per-second-per-gpu {rate!r} --peak-tflops 312")
    assert by_rate["matmul"] == pytest.approx(by_time["matmul"])
    without_batch = calculate(f"{GPT3} --gpus 64 --tokens-per-second-per-gpu {rate!r} --peak-tflops 312")
    assert without_batch["matmul"]["mfu"] == pytest.approx(by_time["matmul"]["mfu"])


def test_the_peak_may_be_a_device_and_a_dtype(calculate):
    slow = f"{KORTHIKANTI_175B} --step-time 60"
    words = f"{slow} --device NVIDIA-A100-SXM4-80GB"
    half, tf32 = calculate(words), calculate(f"{words} --dtype tf32")
    assert 2 * half["matmul"]["mfu"] == pytest.approx(tf32["matmul"]["mfu"])
    assert half == calculate(f"{slow} --peak-tflops bf16=312,fp32=19.5")


def test_adapters_cost_forward_and_the_gradients_of_inputs(calculate):
    everything, lora = calculate(GPT3)["6n"], calculate(f"{GPT3} --trainable lora")["6n"]
    assert lora["model_flops_per_step"] / everything["model_flops_per_step"] == pytest.approx(4 / 6)


def test_half_of_causal_attention_is_for_matmul_alone(calculate):
    full, half = calculate(GPT3), calculate(f"{GPT3} --causal half")
    assert [name for name in full if full[name] != half[name]] == ["matmul"]
    attention = 12 * 96 * 2048 * 2048 * 12288
    assert full["matmul"]["model_flops_per_step"] - half["matmul"]["model_flops_per_step"] == attention // 2


CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_a_config_of_hugging_face_does_as_well_as_flags(config, calculate):
    flags = "--hidden 4096 --heads 32 --ffn 11008 --vocab 32000 --seq 4096"
    assert calculate("--seq 4096", str(config)) == calculate(f"--layers 32 {flags}")
    assert calculate("--layers 16 --seq 4096", str(config)) == calculate(f"--layers 16 {flags}"), "a flag wins"


def test_a_width_of_the_mlp_alone_leaves_a_config_as_it_is(config, calculate):
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    config.write_text(json.dumps(gpt2))
    assert calculate("--seq 1024", str(config)) == calculate("--ffn 3072 --seq 1024", str(config))


GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 9, "n_positions": "many"}
WORDS = [
    "--seq 2048",
    f"{GPT3} --step-time 1",
    f"{GPT3} --batch 1 --step-time 1 --tokens-per-second-per-gpu 1",
    f"{GPT3} --batch 0",
    f"{GPT3} --gpus -1",
    f"{GPT3} --batch 1 --step-time nan",
    f"{GPT3} --layers 0",
    f"{GPT3} --layers 1{'0' * 400}",
    f"{GPT3} --params inf",
    f"{GPT3} --kv-heads 7",
    f"{GPT3} --heads 7",
    f"{GPT3} --experts 8",
    f"{GPT3} --dtype int3",
    f"{GPT3} --peak-tflops 1e308",
    f"{KORTHIKANTI_175B} --device H100",
    f"{KORTHIKANTI_175B} --device Imaginary-9000",
    f"{KORTHIKANTI_175B} --peak-tflops fp16=312",
    BOOK,
]
CONFIGS = [
    *["[]", json.dumps(GPT2), *[json.dumps({"model_type": kind}) for kind in ("mamba", "llama")]],
    *[json.dumps(CONFIG | {"hidden_size": "wide"}), json.dumps(CONFIG | {"tie_word_embeddings": "no"})],
    *[json.dumps(CONFIG | {"architectures": value}) for value in (["LlamaForJoy"], 7)],
]


def test_texts_are_as_their_snapshot(say, config):
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    lines = [("--seq 4096 --batch 8 --step-time 10 --peak-tflops 312 --recompute full", [str(config)])]
    shown = ""
    for words, path in [*lines, *[(words, []) for words in WORDS]]:
        status, out, error = say(words, path)
        shown += f"=== {words[:100]}, exit status {status}\n{out}{error}\n"
    for content in CONFIGS:
        config.write_text(content)
        status, out, error = say("--seq 1", [str(config)])
        shown += f"=== {content}, exit status {status}\n{out}{error}\n"
    config.unlink()
    assert "No such file" in say("--seq 1", [str(config)])[2]
    assert matches(Path(__file__).with_name("printed") / "flops.txt", shown.replace(str(config), "config.json"))
