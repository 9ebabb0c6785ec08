"""What goes on from one attempt to the next through the user's own `save_state` and `load_state`."""

import json

import pytest
import tiny
import torch
from accelerate.utils import ProjectConfiguration
from accelerated import an_accelerator, prepared, rows_of_tokens, train

from perf_callbacks.accelerate import attach
from perf_callbacks.kernel.records.fit_records import Run, Summary

pytestmark = pytest.mark.usefixtures("accelerate_state")


class Custom:
    """Something of the user's own that goes along."""

    def state_dict(self):
        return {"mine": 1}

    def load_state_dict(self, state):
        assert state == {"mine": 1}


def fit(directory, *, measured=True, load=None, save="checkpoint", rows=8, custom=False, **options):
    """One process' worth of training: from a checkpoint, if any, and on to one."""
    accelerator = an_accelerator(directory, **options)
    perf = attach(accelerator) if measured else None
    if custom:
        accelerator.register_for_checkpointing(Custom())
    mine = prepared(accelerator, rows_of_tokens(rows))
    if load is not None:
        accelerator.load_state(load and str(directory / load))
    train(accelerator, *mine)
    accelerator.save_state(save and str(directory / save))
    accelerator.end_training()
    return perf


def runs(directory):
    return [tiny.records(directory, Run, attempt=number)[0] for number in range(attempts(directory))]


def attempts(directory):
    lines = (directory / "perf_callbacks" / "rank0.jsonl").read_text().splitlines()
    return sum(json.loads(line)["type"] == "run" for line in lines)


def totals(perf):
    return perf.summary.total_samples, perf.summary.total_tokens


@pytest.mark.parametrize("custom", [False, True], ids=["", "beside an object of the user's"])
def test_counters_go_on_by_themselves(tmp_path, custom):
    fit(tmp_path, custom=custom)
    second = fit(tmp_path, load="checkpoint", custom=custom)
    third = fit(tmp_path, load="checkpoint", rows=6, custom=custom)
    assert [(run.attempt, run.step) for run in runs(tmp_path)] == [(1, 0), (2, 4), (3, 8)]
    assert len({run.run_id for run in runs(tmp_path)}) == 1
    assert (totals(second), totals(third)) == ((16, 256), (22, 352))
    found = [tiny.steps(tmp_path, attempt=number) for number in range(3)]
    assert [step["step"] for attempt in found for step in attempt] == list(range(1, 12))
    assert [attempt[0]["excluded"] for attempt in found] == ["first", "restart", "restart"]


@pytest.mark.parametrize("custom", [False, True], ids=["", "beside an object of the user's"])
def test_a_checkpoint_written_without_us_is_loaded_with_us_and_its_totals_are_unknown(tmp_path, custom):
    fit(tmp_path, measured=False, custom=custom)
    first = fit(tmp_path, load="checkpoint", save="next", custom=custom)
    assert (first.summary.steps, first.summary.samples, totals(first)) == (4, 8, (None, None))
    second = fit(tmp_path, load="next", custom=custom)
    assert [(run.attempt, run.step) for run in runs(tmp_path)] == [(1, 0), (2, 4)]
    assert totals(second) == (None, None)


@pytest.mark.parametrize("custom", [False, True], ids=["", "beside an object of the user's"])
def test_a_checkpoint_written_with_us_is_loaded_without_us(tmp_path, custom):
    fit(tmp_path, custom=custom)
    fit(tmp_path, measured=False, load="checkpoint", custom=custom)
    assert attempts(tmp_path) == 1


def test_checkpoints_that_accelerate_names_itself_carry_the_counters_too(tmp_path):
    configuration = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True, total_limit=2)
    fit(tmp_path, save=None, project_config=configuration)
    assert (tmp_path / "checkpoints" / "checkpoint_0" / "perf_callbacks.json").is_file()
    accelerator = an_accelerator(tmp_path, project_config=configuration)
    perf = attach(accelerator)
    mine = prepared(accelerator, rows_of_tokens(8))
    accelerator.load_state()
    train(accelerator, *mine)
    for _ in range(3):
        accelerator.save_state()
    accelerator.end_training()
    assert totals(perf) == (16, 256)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"step": "x", "rank": 0, "attempt": 1}'])
def test_counters_that_make_no_sense_count_as_none(tmp_path, content, caplog):
    fit(tmp_path)
    (tmp_path / "checkpoint" / "perf_callbacks.json").write_text(content)
    perf = fit(tmp_path, load="checkpoint")
    assert (perf.summary.steps, totals(perf)) == (4, (None, None))
    assert not caplog.records


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
    assert [(run.attempt, run.step) for run in runs(tmp_path)] == [(1, 0), (2, 4)]
    assert [summary.steps for summary in tiny.records(tmp_path, Summary, attempt=0)] == [8]
    assert (perf.summary.step, totals(perf)) == (8, (16, 256))


def test_the_best_checkpoint_loaded_at_the_end_begins_nothing(tmp_path, capsys):
    accelerator = an_accelerator(tmp_path)
    perf = attach(accelerator)
    mine = prepared(accelerator, rows_of_tokens(8))
    train(accelerator, *mine)
    accelerator.save_state(str(tmp_path / "checkpoint"))
    accelerator.load_state(str(tmp_path / "checkpoint"))
    accelerator.end_training()
    assert attempts(tmp_path) == 1
    assert perf.summary.steps == 4
    assert capsys.readouterr().out.count("perf_callbacks: 4 steps") == 1


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


def test_a_checkpoint_of_ones_own_making_can_carry_the_counters_as_well(tmp_path):
    first = fit(tmp_path)
    torch.save(first.state(), tmp_path / "own.pt")
    accelerator = an_accelerator(tmp_path)
    with attach(accelerator, resume=torch.load(tmp_path / "own.pt", weights_only=True)) as second:
        train(accelerator, *prepared(accelerator, rows_of_tokens(8)))
    assert [(run.attempt, run.step) for run in runs(tmp_path)] == [(1, 0), (2, 4)]
    assert totals(second) == (16, 256)
