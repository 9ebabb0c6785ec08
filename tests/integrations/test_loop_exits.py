"""Ends that only a plain loop has: nested blocks, a loop that is left early, an iterator that outlives its block."""

from contextlib import nullcontext

import pytest
import torch
from faults import Fault, ended
from trainings.plain_loop import LoopTraining
from trainings.runs import steps

from perf_callbacks import PerfConfig
from perf_callbacks.loop import measure


@pytest.mark.parametrize("error", [ValueError("boom"), None], ids=["raising", "ending"])
def test_nested_blocks_restore_their_own_changes(tmp_path, error):
    def act():
        if error and inner.step == 3:
            raise error

    outer, inner = LoopTraining(tmp_path / "outer"), LoopTraining(tmp_path / "inner", "the model", act)
    nothing = outer.world(), inner.world()
    with measure(**outer.objects, config=outer.config):
        between = outer.world()
        with pytest.raises(ValueError, match="boom") if error else nullcontext():
            inner.run()
        assert outer.world() == between
        optimizer = inner.objects["optimizer"]
        assert "zero_grad" not in vars(optimizer)
        assert len(optimizer._optimizer_step_post_hooks) == 1
    assert (outer.world(), inner.world()) == nothing


def config(directory):
    return PerfConfig(output_dir=str(directory))


def test_a_loop_may_be_left_early_and_taken_up_again(tmp_path):
    mine = LoopTraining(tmp_path).objects
    with measure(**mine, config=config(tmp_path)) as perf:
        for _ in range(2):
            for inputs in perf.loader:
                mine["model"](inputs).mean().backward()
                mine["optimizer"].step()
                break
    assert [(step["step"], step["samples"]) for step in steps(tmp_path)] == [(1, 4), (2, 4)]


@pytest.mark.parametrize("place", ["the dataset", "an iterable"])
def test_an_iterator_that_outlives_the_block_goes_on(tmp_path, place):
    training = LoopTraining(tmp_path, place)
    before = training.world()
    with measure(**training.objects, config=config(tmp_path)) as perf:
        iterator = iter(perf.loader)
        next(iterator)
    assert len(list(iterator)) == 7
    assert training.world() == before
    assert perf.summary.failure is None


def test_a_patch_of_the_user_on_top_of_the_callback_stays(tmp_path):
    mine, theirs = LoopTraining(tmp_path).objects, []
    with measure(**mine, config=config(tmp_path)):
        ours = mine["optimizer"].zero_grad
        mine["optimizer"].zero_grad = lambda: theirs.append(ours())
        handle = mine["model"].register_forward_pre_hook(lambda *_: theirs.append("called"))
    mine["optimizer"].zero_grad()
    mine["model"](torch.ones(2, 4))
    handle.remove()
    assert theirs == [None, "called"]


@pytest.mark.parametrize("after", [1, 3])
def test_a_fault_is_the_failure_in_the_summary(tmp_path, monkeypatch, after):
    training = LoopTraining(tmp_path)
    Fault(monkeypatch, "kernel.batches.reader.BatchReader.read", after)
    training.run()
    assert ended(tmp_path) == training.summary
    assert (training.summary.steps, training.summary.failure) == (after, "RuntimeError: a bug of ours")
