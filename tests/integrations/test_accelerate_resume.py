"""Checkpoints of Accelerate: named by it, loaded in the middle or at the end, failing, of the user's own."""

import pytest
import torch
from accelerate.utils import ProjectConfiguration
from trainings import runs
from trainings.accelerated import an_accelerator, prepared, rows_of_tokens, train
from trainings.runs import numbers, totals

from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.records.fit_records import Summary

pytestmark = pytest.mark.usefixtures("accelerate_state")


def test_a_checkpoint_named_by_accelerate_carries_the_counters_too(tmp_path):
    configuration = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True, total_limit=2)
    for attempt in range(2):
        accelerator = an_accelerator(tmp_path, project_config=configuration)
        attach(accelerator)
        mine = prepared(accelerator, rows_of_tokens(8))
        if attempt:
            accelerator.load_state()
        train(accelerator, *mine)
        for _ in range(1 + 2 * attempt):
            accelerator.save_state()
        accelerator.end_training()
    assert totals(tmp_path)[-1] == (16, 256)
    saved = [*(tmp_path / "checkpoints").iterdir()]
    assert [(path / "perf_callbacks.json").is_file() for path in saved] == [True, True]


def test_loading_in_the_middle_begins_a_fit_of_its_own_from_there(tmp_path):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator)
    mine = prepared(accelerator, rows_of_tokens(8))
    train(accelerator, *mine)
    accelerator.save_state(str(tmp_path / "checkpoint"))
    train(accelerator, *mine)
    accelerator.load_state(str(tmp_path / "checkpoint"))
    assert perf.state()["step"] == 4
    train(accelerator, *mine)
    accelerator.end_training()
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert [summary.steps for summary in runs.records(tmp_path, Summary, attempt=0)] == [8]
    assert (perf.summary.step, totals(tmp_path)[-1]) == (8, (16, 256))


def test_the_best_checkpoint_loaded_at_the_end_begins_nothing(tmp_path, capsys):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator)
    mine = prepared(accelerator, rows_of_tokens(8))
    train(accelerator, *mine)
    accelerator.save_state(str(tmp_path / "checkpoint"))
    accelerator.load_state(str(tmp_path / "checkpoint"))
    accelerator.end_training()
    assert numbers(tmp_path) == [(1, 0)]
    assert perf.summary.steps == 4
    assert capsys.readouterr().out.count("  4 steps, ") == 1


def test_a_load_that_fails_is_the_users_and_changes_nothing(tmp_path):
    accelerator = an_accelerator(tmp_path)
    with attach(accelerator) as perf:
        mine = prepared(accelerator, rows_of_tokens(8))
        train(accelerator, *mine)
        with pytest.raises(ValueError, match="folder does not exist"):
            accelerator.load_state(str(tmp_path / "nowhere"))
        train(accelerator, *mine)
    assert perf.summary.steps == 8
    assert not accelerator._load_model_state_pre_hook
    assert not accelerator._save_model_state_pre_hook


def test_a_checkpoint_of_the_users_own_carries_the_counters_too(tmp_path):
    own = tmp_path / "own.pt"
    for resumes in (False, True):
        accelerator = an_accelerator(tmp_path)
        with attach(accelerator, resume=torch.load(own, weights_only=True) if resumes else None) as perf:
            train(accelerator, *prepared(accelerator, rows_of_tokens(8)))
        torch.save(perf.state(), own)
    assert numbers(tmp_path) == [(1, 0), (2, 4)]
    assert totals(tmp_path)[-1] == (16, 256)
