"""Every example runs as it is: on a CPU, offline, from any directory."""

from pathlib import Path

import pytest
from jobs import IMPORTS, python, run
from rows import each_row
from trainings.runs import records

from perf_callbacks.kernel.records.fit_records import Summary
from perf_callbacks.kernel.records.flops_record import Flops

pytestmark = pytest.mark.needs_torch

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.slow] * (path.stem in {"transformers_llama", "gpt_loop", "two_ranks"}),
        )
        for path in EXAMPLES
    ],
)
def test_an_example_runs_and_shows_its_figures(tmp_path, example):
    status, output, errors = run(example, imports=IMPORTS["loop"], directory=tmp_path)
    assert status == 0, errors
    assert "perf_callbacks: " in output + errors
    assert list(tmp_path.rglob("rank0.jsonl"))
    if example.stem == "two_ranks":
        assert "The job waited for slow ranks for" in " ".join(output.split())
        assert "longest for rank 1: waiting for data" in " ".join(output.split())


@each_row("example", EXAMPLES)
def test_an_example_is_under_forty_lines(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40


FABRIC_FLOPS = 64 * (4 * (64 * 512 + 512 * 512 + 512 * 10) + 2 * (512 * 512 + 512 * 10))
"""Of a step of 64 rows: all products forward and for the weights; none for the gradient of the inputs."""

GPT_TOKENS = 4 * 4 * 64
"""Of a step of four micro-batches."""
GPT_FLOPS = GPT_TOKENS * 6 * (2 * 12 * 64**2 + 64 * 256) + 4 * 4 * 12 * 2 * 64**2 * 64
"""Six FLOPs per token and weight of two blocks and the head, and twelve for scores and values of causal attention."""


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
BY_HAND = {
    "a Fabric loop": (["fabric_loop.py"], (32, 2048, None), FABRIC_FLOPS),
    "a Fabric loop of two ranks": (["fabric_loop.py", "2"], (16, 1024, None), FABRIC_FLOPS),
    "a GPT": (["gpt_loop.py"], (40, None, 40 * GPT_TOKENS), GPT_FLOPS),
    "a GPT under torchrun": ([*TORCHRUN, "gpt_loop.py"], (40, None, 40 * GPT_TOKENS), GPT_FLOPS),
}
"""Command, steps with samples and tokens on each rank, FLOPs of a step."""


@pytest.mark.slow
@pytest.mark.parametrize(("command", "amounts", "flops"), BY_HAND.values(), ids=BY_HAND)
def test_the_figures_of_an_example_are_as_by_hand(tmp_path, command, amounts, flops):
    words = [EXAMPLES[0].parent / word if word.endswith(".py") else word for word in command]
    status, output = python(*words, cwd=tmp_path)
    assert status == 0, output
    ranks = 2 if "2" in command else 1
    for rank in range(ranks):
        (summary,) = records(tmp_path, Summary, rank=rank)
        assert (summary.steps, summary.samples, summary.tokens) == amounts
        assert {record.model_flops for record in records(tmp_path, Flops, rank=rank)} == {flops}
        assert sum(summary.stage_seconds.values()) == pytest.approx(summary.included_seconds, rel=0.01)
    assert len([*tmp_path.rglob("rank*.jsonl")]) == ranks


def test_readme_shows_a_result_and_both_set_up_commands_first():
    lines = (EXAMPLES[0].parents[1] / "README.md").read_text(encoding="utf-8").splitlines()
    told = [line.partition("  #")[0] for line in lines]
    card = next(number for number, line in enumerate(lines) if "(docs/images/card.svg)" in line)
    result, demo, tests, install = map(told.index, ("```text", "make demo", "make test", "## Install"))
    unfinished = next(number for number, line in enumerate(lines) if "On a GPU, only short runs" in line)
    assert card < result < demo < tests < unfinished < install < 45
    assert len(lines) <= 150
