"""The sizes of a model, before it is trained. `printed/shapes.txt` has the texts."""

import json
from pathlib import Path

import pytest
from snapshots import matches

from perf_callbacks.commands import main

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4096, "num_attention_heads": 32,
    "intermediate_size": 10922, "vocab_size": 32000,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
SMALL = LLAMA | {"hidden_size": 256, "num_attention_heads": 2, "intermediate_size": 256}
CASES = {
    "the width of a gated MLP": (LLAMA, ""),
    "the vocabulary and the tokens": (GPT2, "--tokens 8190"),
    "sizes that are right": (LLAMA | {"intermediate_size": 11008}, "--tokens 8192 --multiprocessors 132"),
    "a last wave that is nearly empty": (SMALL, "--tokens 13952 --multiprocessors 108"),
    "no tokens": (LLAMA, "--tokens 0"),
    "multiprocessors alone": (LLAMA, "--multiprocessors 108"),
}
"""By name: the configuration, and the words of the command."""


def test_texts_are_as_their_snapshot(tmp_path, capsys):
    """`WRITE_SNAPSHOTS=1` writes it anew."""
    path, shown = tmp_path / "config.json", ""
    for name, (config, words) in CASES.items():
        path.write_text(json.dumps(config))
        status = main(["shapes", str(path), *words.split()])
        printed = capsys.readouterr()
        shown += f"=== {name}, exit status {status}\n{printed.out}{printed.err}\n"
    assert matches(Path(__file__).with_name("printed") / "shapes.txt", shown)


@pytest.mark.parametrize("content", ["[]", "{", None])
def test_a_file_that_is_no_configuration(tmp_path, capsys, content):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    assert main(["shapes", str(path)]) == 2
    assert "wanted a config.json, got" in capsys.readouterr().err
