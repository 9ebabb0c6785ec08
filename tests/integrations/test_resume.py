"""A run goes on from one attempt to the next with a checkpoint: in its id, its steps, its totals and its goodput."""

import copy
import json
import weakref

import pytest
from accelerate import accelerator as accelerator_module
from lightning.pytorch.core.hooks import CheckpointHooks
from sampling import crossed
from trainings import lightning_kit, models
from trainings.doors import DOORS
from trainings.runs import numbers, opened, records, steps, totals
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
        "ignore:Using ModelCheckpoint with manual optimization and every_n_train_steps",
        "ignore:Be aware that when using `ckpt_path`",
    ),
]

RESTORED = {"arguments": {"restore_callback_states_from_checkpoint": True}}

ROWS, RAGGED = {"rows": 40}, {"accumulate": 2, "rows": 22}

FITS = {
    "transformers": ("transformers", ROWS),
    "transformers, callbacks restored": ("transformers", ROWS | RESTORED),
    "accelerate": ("accelerate", {}),
    "accelerate, an object of the user's": ("accelerate", {"custom": True}),
    **{of: (of, {}) for of in lightning_kit.FRAMEWORKS},
}

VARIANTS = FITS | {
    "transformers, ragged": ("transformers", RAGGED),
    "transformers, ragged, callbacks restored": ("transformers", RAGGED | RESTORED),
    **{f"{of}, manual": (of, {"kind": "Manual"}) for of in lightning_kit.FRAMEWORKS},
    "loop": ("loop", {}),
}

each_fit = pytest.mark.parametrize(("door", "options"), FITS.values(), ids=FITS)

each_variant = pytest.mark.parametrize(("door", "options"), VARIANTS.values(), ids=VARIANTS)


def fit(directory, door, *, until, **options):
    """Train until a step, saving a checkpoint after every second step."""
    DOORS[door](directory, steps=until, save=2, **options).run()


def tokens(door, samples):
    """Tokens of samples: other models have rows of numbers."""
    return 16 * samples if door == "transformers" else None


@pytest.fixture
def goodput(tmp_path, capsys):
    def goodput(*words):
        capsys.readouterr()
        assert main(["goodput", str(tmp_path), "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    return goodput


def counted_once(goodput, steps):
    """Whether each of the steps of measured attempts is kept or rolled back."""
    job = goodput("--all")
    return sum(attempt["steps"] for attempt in job["attempts"]) == job["kept_steps"] + job["rolled_back_steps"] == steps


def shares(directory, attempt):
    rows = records(directory, Row, attempt=attempt)
    return [value for row in rows for key, value in row.metrics.items() if key.endswith("/ettr")]


@each_variant
def test_a_resumed_run_goes_on_in_id_steps_and_totals(tmp_path, door, options):
    fit(tmp_path, door, until=4, **options)
    fit(tmp_path, door, until=8, resume=4, **options)
    fit(tmp_path, door, until=12, resume=8, **options)
    assert numbers(tmp_path) == [(1, 0), (2, 4), (3, 8)]
    first, second, third = opened(tmp_path)
    assert first.run_id == second.run_id == third.run_id
    assert (first.resumed_unix, second.resumed_unix) == (None, first.started_unix)
    assert third.resumed_unix == second.started_unix
    assert second.last_sign_unix >= first.started_unix - 1
    later = shares(tmp_path, 1) + shares(tmp_path, 2)
    assert shares(tmp_path, 0) == []
    assert all(0 < share < 1 for share in later)
    assert later
    attempts_steps = [steps(tmp_path, attempt=number) for number in range(3)]
    assert [step["step"] for attempt in attempts_steps for step in attempt] == list(range(1, 13))
    assert [attempt[0]["excluded"] for attempt in attempts_steps] == ["first", "restart", "restart"]
    samples = [
        sum(step["samples"] for attempt in attempts_steps[: number + 1] for step in attempt) for number in range(3)
    ]
    assert totals(tmp_path) == [(amount, tokens(door, amount)) for amount in samples]
    assert samples[0] >= 4 * 4


@pytest.mark.parametrize(
    ("door", "options"),
    [pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name not in FITS)) for name, case in VARIANTS.items()],
)
def test_a_resume_from_an_earlier_checkpoint_counts_from_there(tmp_path, goodput, door, options):
    fit(tmp_path, door, until=6, **options)
    fit(tmp_path, door, until=8, resume=2, **options)
    assert numbers(tmp_path) == [(1, 0), (2, 2)]
    first, second = [[step["samples"] for step in steps(tmp_path, attempt=number)] for number in (0, 1)]
    amounts = sum(first), sum(first[:2]) + sum(second)
    assert totals(tmp_path) == [(amount, tokens(door, amount)) for amount in amounts]
    job = goodput()
    assert [(attempt["steps"], attempt["rolled_back_steps"]) for attempt in job["attempts"]] == [(6, 4), (6, 0)]
    assert [attempt["resumed_from"] for attempt in job["attempts"]] == [None, 0]
    assert sum(seconds or 0.0 for seconds in job["seconds"].values()) == pytest.approx(job["all_seconds"])
    assert 0 < job["ettr"] < 1
    assert (door == "loop") == (job["seconds"]["restore"] is None)  # of a loop of the user's it is unknown


@each_fit
def test_a_run_resumed_without_the_callback_goes_on_without_it(tmp_path, goodput, door, options):
    fit(tmp_path, door, until=4, **options)
    fit(tmp_path, door, until=8, resume=4, measured=False, **options)
    assert numbers(tmp_path) == [(1, 0)]
    assert counted_once(goodput, 4)


@each_fit
def test_a_run_first_measured_after_a_resume_has_no_totals(tmp_path, goodput, door, options):
    fit(tmp_path, door, until=4, measured=False, **options)
    fit(tmp_path, door, until=8, resume=4, **options)
    assert sum(step["samples"] for step in steps(tmp_path)) == 16
    fit(tmp_path, door, until=10, resume=8, **options)
    before = 0 if door == "accelerate" else 4  # Accelerate's own checkpoints have no step
    assert numbers(tmp_path) == [(1, before), (2, before + 4)]
    assert totals(tmp_path) == [(None, None)] * 2
    assert counted_once(goodput, 6)


@each_fit
def test_a_stretch_without_the_callback_leaves_the_totals_unknown(tmp_path, goodput, door, options):
    fit(tmp_path, door, until=4, **options)
    fit(tmp_path, door, until=8, resume=4, measured=False, **options)
    fit(tmp_path, door, until=12, resume=8, **options)
    assert totals(tmp_path) == [(16, tokens(door, 16)), (None, None)]
    assert counted_once(goodput, 8)


@pytest.mark.parametrize(
    ("content", "door"),
    crossed(
        ["", "{", "[]", "{}", '{"step": "x", "rank": 0, "attempt": 1}'],
        ["accelerate", "transformers"],
    ),
)
def test_counters_without_sense_are_ignored(tmp_path, caplog, content, door):
    fit(tmp_path, door, until=4)
    (tmp_path / "checkpoint-4" / "perf_callbacks.json").write_text(content)
    fit(tmp_path, door, until=8, resume=4)
    assert totals(tmp_path)[1] == (None, None)
    assert not [record for record in caplog.records if record.name == "perf_callbacks"]


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


def test_a_trainer_that_never_trains_is_freed_and_leaves_the_class_as_it_was(tmp_path):
    before = {**vars(Trainer)}
    trainer = models.trainer(models.training_arguments(tmp_path), PerfCallback())
    assert vars(Trainer) != before
    copy.deepcopy(trainer.callback_handler.callbacks)
    gone = weakref.ref(trainer)
    del trainer
    assert gone() is None
    assert vars(Trainer) == before


def test_a_trainer_that_is_freed_leaves_the_next_watched(tmp_path):
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
