"""The calculator, by what it prints."""

import json

import pytest

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
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


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


NUMBER = "got an impossible number, wanted numbers above 0 and up to 1e+18."
TIME = "--step-time: wanted --batch with it, and no --tokens-per-second-per-gpu."
MISFIT = "the model: got sizes that don't fit, wanted hidden % heads == heads % kv_heads == 0."
REFUSED = {
    "--seq 2048": "the model: wanted --params, or --layers, --hidden and --vocab, or CONFIG.",
    f"{GPT3} --step-time 1": TIME,
    f"{GPT3} --batch 1 --step-time 1 --tokens-per-second-per-gpu 1": TIME,
    f"{GPT3} --batch 0": NUMBER,
    f"{GPT3} --gpus -1": NUMBER,
    f"{GPT3} --batch 1 --step-time nan": NUMBER,
    f"{GPT3} --layers 0": NUMBER,
    f"{GPT3} --layers 1{'0' * 400}": NUMBER,
    f"{GPT3} --params inf": NUMBER,
    f"{GPT3} --kv-heads 7": MISFIT,
    f"{GPT3} --heads 7": MISFIT,
    f"{GPT3} --experts 8": MISFIT,
    f"{GPT3} --dtype int3": "dtype: got 'int3', wanted one of bf16, fp16, half, tf32, fp32, fp64, fp8, fp4.",
    f"{GPT3} --peak-tflops 1e308": "peak_tflops: got '1e308', wanted TFLOPS above 0 such as 989.5.",
}


def test_input_that_makes_no_sense_is_refused_in_a_sentence(say):
    for words, sentence in REFUSED.items():
        assert say(words) == (2, "", f"perf-callbacks flops: {sentence}\n")


CONFIGS = {
    '{"model_type": "mamba"}': "model_type: got 'mamba', wanted one of bloom, ",
    '{"model_type": "llama"}': "num_hidden_layers: is missing in config.json, wanted a whole number.",
    "[]": "wanted a config.json, got list.",
    "{": "wanted a config.json, got: Expecting",
    json.dumps(CONFIG | {"hidden_size": "wide"}): "hidden_size: got 'wide', wanted a whole number.",
    json.dumps(CONFIG | {"tie_word_embeddings": "no"}): "tie_word_embeddings: got 'no', wanted true or false.",
    json.dumps(CONFIG | {"architectures": ["LlamaForJoy"]}): "got ['LlamaForJoy'], whose output head is unknown.",
    json.dumps(CONFIG | {"architectures": 7}): "architectures: got 7, whose output head is unknown.",
    json.dumps(
        {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 9, "n_positions": "many"}
    ): ("n_positions: got 'many', wanted a whole number."),
}


def test_a_config_that_makes_no_sense_is_refused_in_words(say, config):
    for content, sentence in CONFIGS.items():
        config.write_text(content)
        status, out, error = say("--seq 1", [str(config)])
        assert (status, out, sentence in error) == (2, "", True), error
    config.unlink()
    assert "No such file" in say("--seq 1", [str(config)])[2]


ASKED = "did you mean NVIDIA H100 80GB HBM3, NVIDIA H100 NVL or NVIDIA H100 PCIe?"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--device H100", f"No dense peak is known for 'H100' ({ASKED}): give it with --peak-tflops."),
        ("--device Imaginary-9000", "No dense peak is known for 'Imaginary-9000': give it with --peak-tflops."),
        ("--peak-tflops fp16=312", "No dense peak in bfloat16 is known (peak_tflops=fp16=312)."),
    ],
)
def test_without_a_peak_there_is_no_mfu_and_a_sentence(say, words, sentence):
    status, out, error = say(f"{KORTHIKANTI_175B} --json {words}")
    assert (status, error) == (0, f"{sentence}\n")
    assert {result["mfu"] for result in json.loads(out)["conventions"].values()} == {None}


TEXT = """\
                   model FLOPs  of matmul  hardware FLOPs  model TFLOPS/GPU  hardware TFLOPS/GPU    MFU    HFU
matmul               1.510e+15      1.000       2.005e+15             151.0                200.5  48.4%  64.3%
6n                   1.325e+15      0.877       1.766e+15             132.5                176.6  42.5%  56.6%
palm                 1.536e+15      1.017               —             153.6                    —  49.2%      —
nanogpt              1.536e+15      1.017               —             153.6                    —  49.2%      —
megatron-eq3         1.504e+15      0.996       1.996e+15             150.4                199.6  48.2%  64.0%
korthikanti          1.504e+15      0.996       1.996e+15             150.4                199.6  48.2%  64.0%
korthikanti-exact    1.504e+15      0.996       1.996e+15             150.4                199.6  48.2%  64.0%
torchtitan           1.510e+15      1.000               —             151.0                    —  48.4%      —
llm-foundry          1.536e+15      1.017       2.048e+15             153.6                204.8  49.2%  65.6%
"""


def test_the_text_has_a_row_for_each_convention(say, config):
    words = "--seq 4096 --batch 8 --step-time 10 --peak-tflops 312 --recompute full"
    status, out, error = say(words, [str(config)])
    assert (status, error) == (0, "peak: peak_tflops=312\n")
    assert out == TEXT
    assert "6n                   6.543e+17          —" in say(BOOK)[1], "nothing to compare with"
