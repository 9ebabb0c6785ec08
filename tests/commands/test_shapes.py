"""The sizes of a model, before it is trained."""

import json

import pytest

from perf_callbacks.commands import main

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 10922,
    "vocab_size": 32000,
}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}


@pytest.fixture
def shapes(tmp_path, capsys):
    """The exit status and what was printed."""

    def run(config, *words):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        status = main(["shapes", str(path), *words])
        printed = capsys.readouterr()
        return status, printed.out or printed.err

    return run


def test_the_width_of_a_gated_mlp(shapes):
    expected = """\
              size  take    weights with it
width        4,096  as is
MLP         10,922  10,944  134,209,536 -> 134,479,872
vocabulary  32,000  as is
head           128  as is
"""
    assert shapes(LLAMA) == (1, expected)


def test_no_complaint_about_a_model_that_is_right(shapes):
    status, printed = shapes(LLAMA | {"intermediate_size": 11008}, "--tokens", "8192", "--multiprocessors", "132")
    assert (status, printed.count("as is")) == (0, 5)
    assert "waves" not in printed


def test_a_last_wave_that_is_nearly_empty(shapes):
    small = LLAMA | {"hidden_size": 256, "num_attention_heads": 2, "intermediate_size": 256}
    status, printed = shapes(small, "--tokens", "13952", "--multiprocessors", "108")
    assert status == 1
    expected = """
13,952 tokens are 109 tiles in a product, for 108 multiprocessors:
  2 waves, 50.5% busy; 13,824 tokens take one wave less
"""
    assert expected in printed


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tokens", "0"], "--tokens: got 0, wanted a whole number from 1 to 1e+18."),
        (["--multiprocessors", "108"], "--tokens: is missing, wanted the tokens that the multiprocessors work on."),
    ],
)
def test_arguments_that_make_no_sense(shapes, words, complaint):
    status, printed = shapes(LLAMA, *words)
    assert (status, printed) == (2, f"perf-callbacks shapes: {complaint}\n")


@pytest.mark.parametrize("content", ["[]", "{", None])
def test_a_file_that_is_no_configuration(tmp_path, capsys, content):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    assert main(["shapes", str(path)]) == 2
    assert "wanted a config.json, got" in capsys.readouterr().err
