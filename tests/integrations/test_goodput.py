"""Goodput over attempts of real trainings: no crash, no double count, and a share that a resumed run logs."""

import copy
import json
import weakref

import pytest
from accelerate import accelerator as accelerator_module
from lightning.pytorch.core.hooks import CheckpointHooks
from trainings import models
from trainings.doors import DOORS
from trainings.runs import opened, records
from transformers import Trainer

from perf_callbacks.commands import main
from perf_callbacks.integrations import restore_time
from perf_callbacks.kernel.records.fit_records import Row
from perf_callbacks.transformers import PerfCallback

pytestmark = [
    pytest.mark.usefixtures("accelerate_state"),
    pytest.mark.filterwarnings(
        "ignore:You're resuming from a checkpoint that ended before the epoch ended",
        "ignore:Checkpoint directory .* exists and is not empty",
        "ignore:Be aware that when using `ckpt_path`",
    ),
]

RESTORED = [{}, {"arguments": {"restore_callback_states_from_checkpoint": True}}]
each_door = pytest.mark.parametrize("door", ["transformers", "lightning", "accelerate", "loop"])


def fit(directory, door, *, until, **options):
    """Train until a step, saving a checkpoint after every second step."""
    DOORS[door](directory, steps=until, save=2, **options).run()


def goodput(directory, capsys, *words):
    capsys.readouterr()
    assert main(["goodput", str(directory), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@each_door
def test_a_chain_of_attempts_keeps_each_step_once(tmp_path, capsys, door):
    fit(tmp_path, door, until=6)
    fit(tmp_path, door, until=8, resume=2)
    fit(tmp_path, door, until=12, resume=8)
    found = goodput(tmp_path, capsys)
    assert [(one["steps"], one["rolled_back_steps"]) for one in found["attempts"]] == [(6, 4), (6, 0), (4, 0)]
    assert [one["resumed_from"] for one in found["attempts"]] == [None, 0, 1]
    assert sum(seconds or 0.0 for seconds in found["seconds"].values()) == pytest.approx(found["all_seconds"])
    assert 0 < found["ettr"] < 1
    first, second, third = opened(tmp_path)
    assert [first.resumed_unix, second.resumed_unix, third.resumed_unix] == [
        None,
        first.started_unix,
        second.started_unix,
    ]
    assert second.last_sign_unix >= first.started_unix - 1


@pytest.mark.parametrize("options", RESTORED, ids=["", "callbacks restored"])
@pytest.mark.parametrize("measured", [(True, False, True), (False, True, True), (True, True, False)], ids=str)
def test_attempts_without_the_callback_are_unknown_and_no_step_counts_twice(tmp_path, capsys, measured, options):
    for number, with_ours in enumerate(measured):
        resume = 4 * number or None
        fit(tmp_path, "transformers", until=4 * number + 4, resume=resume, measured=with_ours, **options)
    found = goodput(tmp_path, capsys, "--all")
    assert sum(one["steps"] for one in found["attempts"]) == 4 * sum(measured)
    assert found["kept_steps"] + found["rolled_back_steps"] == 4 * sum(measured)


def ettrs(directory):
    return [one for row in records(directory, Row) for key, one in row.metrics.items() if key.endswith("/ettr")]


@each_door
def test_a_resumed_run_logs_its_share(tmp_path, door):
    fit(tmp_path, door, until=4)
    assert not ettrs(tmp_path)
    fit(tmp_path, door, until=8, resume=4)
    shares = ettrs(tmp_path)
    assert shares
    assert all(0 < share < 1 for share in shares)


def slow_reads(monkeypatch, of):
    """A clock that advances by 100 s whenever the framework's own method `of` is called, and else stands still."""
    (owner, name), now = of, [0.0]
    inner = getattr(owner, name)

    def read(*args, **kwargs):
        now[0] += 100.0
        return inner(*args, **kwargs)

    monkeypatch.setattr(owner, name, read)
    monkeypatch.setattr(restore_time, "perf_counter", lambda: now[0])
    return now


READ = [
    pytest.param("transformers", (Trainer, "_load_from_checkpoint"), id="transformers"),
    pytest.param("lightning", (CheckpointHooks, "on_load_checkpoint"), id="lightning"),
    pytest.param("accelerate", (accelerator_module, "load_accelerator_state"), id="accelerate"),
]


@pytest.mark.parametrize(("door", "of"), READ)
def test_reading_a_checkpoint_is_a_kind_of_its_own(tmp_path, monkeypatch, door, of):
    fit(tmp_path, door, until=4)
    now = slow_reads(monkeypatch, of)
    before = {**vars(Trainer)}
    fit(tmp_path, door, until=8, resume=4)
    assert vars(Trainer) == before
    first, second = opened(tmp_path)
    assert first.restore_seconds is None
    assert second.restore_seconds == now[0] >= 100.0


def test_reading_a_checkpoint_in_a_loop_of_the_users_is_unknown(tmp_path, capsys):
    fit(tmp_path, "loop", until=4)
    fit(tmp_path, "loop", until=8, resume=4)
    assert [run.restore_seconds for run in opened(tmp_path)] == [None, None]
    assert goodput(tmp_path, capsys)["seconds"]["restore"] is None


def test_a_trainer_that_never_trains_is_freed_and_leaves_the_class_as_it_was(tmp_path):
    before = {**vars(Trainer)}
    trainer = models.trainer(models.training_arguments(tmp_path), PerfCallback())
    assert vars(Trainer) != before
    copy.deepcopy(trainer.callback_handler.callbacks)
    gone = weakref.ref(trainer)
    del trainer
    assert gone() is None
    assert vars(Trainer) == before


def test_a_trainer_that_is_freed_leaves_the_next_one_watched(tmp_path):
    ours = PerfCallback()
    first = models.trainer(models.training_arguments(tmp_path), ours)
    second = models.trainer(models.training_arguments(tmp_path), ours)
    watched = {**vars(type(second))}
    del first
    assert vars(type(second)) == watched
    assert hasattr(watched["_load_from_checkpoint"], "__wrapped__")
    del second


def test_a_method_that_is_no_plain_function_stays_as_it_is():
    class Owner:
        read = staticmethod(lambda: 1)

    owner, time = Owner(), restore_time.RestoreTime()
    time.watch(owner, "read", "absent")
    assert owner.read() == 1
    assert time.take() is None
