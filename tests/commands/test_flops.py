"""The calculator, by what it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import perf_callbacks
from perf_callbacks.commands import COMMANDS, GONE, main

SOURCE = Path(perf_callbacks.__file__).parents[1]
GPT3 = "--layers 96 --hidden 12288 --heads 96 --vocab 51200 --seq 2048"
KORTHIKANTI_22B = "--layers 48 --hidden 6144 --heads 64 --vocab 51200 --seq 2048 --batch 4 --gpus 8 --step-time 1.10"
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
FOUNDRY_7B = (
    "--params 6658859008 --layers 32 --hidden 4096 --seq 2048 --gpus 8 "
    "--tokens-per-second-per-gpu 10643 --device NVIDIA-H100-80GB-HBM3"
)
FOUNDRY_70B = (
    "--params 64862437376 --layers 80 --hidden 8192 --seq 2048 --gpus 64 "
    "--tokens-per-second-per-gpu 1039 --peak-tflops 989.5 --recompute full"
)
ALL = [
    "matmul",
    "6n",
    "palm",
    "nanogpt",
    "megatron-eq3",
    "korthikanti",
    "korthikanti-exact",
    "torchtitan",
    "llm-foundry",
]


@pytest.fixture
def calculate(capsys):
    def calculate(words):
        assert main(["flops", *words.split(), "--json"]) == 0
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


@pytest.mark.parametrize(
    ("words", "convention", "published"),
    [
        (f"{KORTHIKANTI_22B} --peak-tflops 312 --recompute selective", "korthikanti", {"mfu": 41.5, "hfu": 43.7}),
        (f"{KORTHIKANTI_175B} --peak-tflops 312 --recompute selective", "korthikanti", {"mfu": 51.4, "hfu": 52.8}),
        (f"{PALM} --peak-tflops 275", "palm", {"mfu": 46.2}),
        (f"{PALM} --peak-tflops 275", "6n", {"mfu": 45.7}),
        (f"{PALM} --peak-tflops 275 --recompute full", "6n", {"hfu": 61.0}),
        (FOUNDRY_7B, "llm-foundry", {"mfu": 46.44, "hfu": 46.44}),
        (FOUNDRY_70B, "llm-foundry", {"mfu": 42.57, "hfu": 56.76}),
    ],
)
def test_published_shares_of_the_peak_come_out(calculate, words, convention, published):
    result = calculate(words)[convention]
    assert {name: 100 * result[name] for name in published} == pytest.approx(published, abs=0.2)


@pytest.mark.parametrize(
    ("words", "convention", "seconds", "tflops"),
    [
        (BLOOM, "megatron-eq3", 104, 150.8),
        (BLOOM, "megatron-eq3", 105, 149.3),
        (BLOOM, "matmul", 104, 150.8),
        (BLOOM, "6n", 104, 148.1),
        (BLOOM, "6n", 105, 146.7),
    ],
)
def test_published_rates_of_bloom_come_out(calculate, words, convention, seconds, tflops):
    result = calculate(f"{words} --step-time {seconds}")[convention]
    assert result["hardware_flops_per_step"] / seconds / 384 / 1e12 == pytest.approx(tflops, abs=0.2)


def test_the_one_liner_of_the_books_is_6n(calculate):
    full, none = (calculate(f"{BOOK} --recompute {recompute}")["6n"] for recompute in ("full", "none"))
    factor = 52 * 2 * 2048 * 1024 / (127 * 64 * 1e3)
    assert (
        full["hardware_flops_per_step"] / 127 / 64 / 1e12 == pytest.approx(factor * 4) == pytest.approx(107.3, abs=0.05)
    )
    assert none["model_tflops_per_gpu"] == pytest.approx(factor * 3) == pytest.approx(80.5, abs=0.05)
    assert none["hardware_flops_per_step"] == none["model_flops_per_step"] == full["model_flops_per_step"]


def test_every_convention_says_the_same_five_things(calculate):
    results = calculate(f"{KORTHIKANTI_175B} --peak-tflops 312")
    keys = ["model_flops_per_step", "hardware_flops_per_step", "model_tflops_per_gpu", "mfu", "hfu"]
    assert list(results) == ALL
    assert all(list(result) == keys for result in results.values())
    assert all(0 < result["mfu"] <= result["hfu"] < 1 for result in results.values())


def test_what_a_convention_does_not_say_is_null(calculate):
    results = calculate(f"{KORTHIKANTI_175B} --peak-tflops 312 --recompute selective")
    said = [name for name, result in results.items() if result["hfu"] is not None]
    assert said == ["matmul", "korthikanti", "korthikanti-exact"]
    results = calculate(f"{KORTHIKANTI_175B} --recompute full")
    said = [name for name, result in results.items() if result["hardware_flops_per_step"] is not None]
    assert said == ["matmul", "6n", "megatron-eq3", "korthikanti", "korthikanti-exact", "llm-foundry"]


def test_of_a_model_of_which_only_the_size_is_known_6n_alone_can_say(calculate):
    results = calculate(BOOK)
    assert [name for name, result in results.items() if result["model_flops_per_step"] is not None] == ["6n"]


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


def test_a_config_of_hugging_face_does_as_well_as_flags(capsys, config, calculate):
    flags = calculate("--layers 32 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000 --seq 4096")
    assert main(["flops", str(config), "--seq", "4096", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["conventions"] == flags


def test_a_flag_wins_over_the_config(capsys, config, calculate):
    flags = calculate("--layers 16 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000 --seq 4096")
    assert main(["flops", str(config), "--layers", "16", "--seq", "4096", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["conventions"] == flags


def test_a_width_of_the_mlp_alone_leaves_a_config_what_it_is(capsys, tmp_path):
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(gpt2))
    printed = []
    for more in ([], ["--ffn", "3072"]):
        assert main(["flops", str(path), *more, "--seq", "1024", "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


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


def test_input_that_makes_no_sense_is_refused_in_one_sentence(say):
    for words, sentence in REFUSED.items():
        assert say(words) == (2, "", f"perf-callbacks flops: {sentence}\n")


def test_what_is_gone_is_refused_with_what_to_do_instead(capsys):
    for gone, instead in GONE.items():
        assert main([*gone.split(), "x"]) == 2
        assert capsys.readouterr() == ("", f"perf-callbacks {gone} is gone: {instead}.\n")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"model_type": "mamba"}', "model_type: got 'mamba', wanted one of bloom, "),
        ('{"model_type": "llama"}', "num_hidden_layers: is missing in config.json, wanted a whole number."),
        ("[]", "wanted a config.json, got list."),
        ("{", "wanted a config.json, got: Expecting"),
        (json.dumps(CONFIG | {"hidden_size": "wide"}), "hidden_size: got 'wide', wanted a whole number."),
        (
            json.dumps(CONFIG | {"tie_word_embeddings": "false"}),
            "tie_word_embeddings: got 'false', wanted true or false.",
        ),
        (
            json.dumps(CONFIG | {"architectures": ["LlamaForJoy"]}),
            "architectures: got ['LlamaForJoy'], whose output head is unknown.",
        ),
        (json.dumps(CONFIG | {"architectures": 7}), "architectures: got 7, whose output head is unknown."),
        (
            '{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 9, "n_positions": "many"}',
            "n_positions: got 'many', wanted a whole number.",
        ),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_words(say, tmp_path, content, sentence):
    path = tmp_path / "config.json"
    path.write_text(content)
    status, out, error = say("--seq 1", [str(path)])
    assert (status, out) == (2, "")
    assert sentence in error


def test_a_config_that_is_not_there_is_refused_in_words(say, tmp_path):
    status, _, error = say("--seq 1", [str(tmp_path / "nowhere.json")])
    assert status == 2
    assert "No such file" in error


def test_a_device_by_half_its_name_is_asked_about(say):
    status, _, error = say(f"{KORTHIKANTI_175B} --json --device H100")
    asked = "did you mean NVIDIA H100 80GB HBM3, NVIDIA H100 NVL or NVIDIA H100 PCIe?"
    assert (status, error) == (0, f"No dense peak is known for 'H100' ({asked}): give it with --peak-tflops.\n")


def test_a_device_that_is_not_known_leaves_out_the_mfu_and_says_so(say):
    status, out, error = say(f"{KORTHIKANTI_175B} --json --device Imaginary-9000")
    assert (status, error) == (0, "No dense peak is known for 'Imaginary-9000': give it with --peak-tflops.\n")
    assert {result["mfu"] for result in json.loads(out)["conventions"].values()} == {None}


def test_a_dtype_without_a_peak_leaves_out_the_mfu_and_says_so(say):
    status, out, error = say(f"{KORTHIKANTI_175B} --json --peak-tflops fp16=312")
    assert (status, error) == (
        0,
        "No dense peak in bfloat16 is known (peak_tflops=fp16=312).\n",
    )
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


def test_without_the_dimensions_there_is_nothing_to_compare_with(say):
    _, out, _ = say(BOOK)
    assert "6n                   6.543e+17          —" in out


def test_every_command_is_listed(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    help_ = capsys.readouterr().out
    assert exit_.value.code == 0
    assert all(command.SUMMARY.split(",")[0] in help_ for command in COMMANDS.values())


@pytest.mark.parametrize("words", [[], ["nonsense"], ["flops"], ["flops", "--seq", "many"]])
def test_a_command_line_that_makes_no_sense_exits_with_2(capsys, words):
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2


def test_the_calculator_runs_without_torch():
    script = (
        "import sys; from perf_callbacks.commands import main; "
        f"main({['flops', *KORTHIKANTI_175B.split()]!r}); print('torch' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stderr == ""
    assert done.stdout.endswith("\nFalse\n")
