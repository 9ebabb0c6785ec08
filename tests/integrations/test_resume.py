"""A run goes on from one attempt to the next with a checkpoint: in its id, its steps and its totals."""

import pytest
from sampling import crossed
from trainings import lightning_kit
from trainings.doors import DOORS
from trainings.runs import numbers, opened, steps, totals

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


@each_variant
def test_a_resumed_run_goes_on_in_id_steps_and_totals(tmp_path, door, options):
    fit(tmp_path, door, until=4, **options)
    fit(tmp_path, door, until=8, resume=4, **options)
    fit(tmp_path, door, until=12, resume=8, **options)
    assert numbers(tmp_path) == [(1, 0), (2, 4), (3, 8)]
    assert len({run.run_id for run in opened(tmp_path)}) == 1
    found = [steps(tmp_path, attempt=number) for number in range(3)]
    assert [step["step"] for attempt in found for step in attempt] == list(range(1, 13))
    assert [attempt[0]["excluded"] for attempt in found] == ["first", "restart", "restart"]
    samples = [sum(step["samples"] for attempt in found[: number + 1] for step in attempt) for number in range(3)]
    assert totals(tmp_path) == [(amount, tokens(door, amount)) for amount in samples]
    assert samples[0] >= 4 * 4


@pytest.mark.parametrize(
    ("door", "options"),
    [pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name not in FITS)) for name, case in VARIANTS.items()],
)
def test_a_resume_from_an_earlier_checkpoint_counts_from_there(tmp_path, door, options):
    fit(tmp_path, door, until=6, **options)
    fit(tmp_path, door, until=8, resume=2, **options)
    assert numbers(tmp_path) == [(1, 0), (2, 2)]
    first, second = [[step["samples"] for step in steps(tmp_path, attempt=number)] for number in (0, 1)]
    amounts = sum(first), sum(first[:2]) + sum(second)
    assert totals(tmp_path) == [(amount, tokens(door, amount)) for amount in amounts]


@each_fit
def test_a_run_resumed_without_the_callback_goes_on_without_it(tmp_path, door, options):
    fit(tmp_path, door, until=4, **options)
    fit(tmp_path, door, until=8, resume=4, measured=False, **options)
    assert numbers(tmp_path) == [(1, 0)]


@each_fit
def test_a_run_first_measured_after_a_resume_has_no_totals(tmp_path, door, options):
    fit(tmp_path, door, until=4, measured=False, **options)
    fit(tmp_path, door, until=8, resume=4, **options)
    assert sum(step["samples"] for step in steps(tmp_path)) == 16
    fit(tmp_path, door, until=10, resume=8, **options)
    before = 0 if door == "accelerate" else 4  # Accelerate's own checkpoints have no step
    assert numbers(tmp_path) == [(1, before), (2, before + 4)]
    assert totals(tmp_path) == [(None, None)] * 2


@each_fit
def test_a_stretch_without_the_callback_leaves_the_totals_unknown(tmp_path, door, options):
    fit(tmp_path, door, until=4, **options)
    fit(tmp_path, door, until=8, resume=4, measured=False, **options)
    fit(tmp_path, door, until=12, resume=8, **options)
    assert totals(tmp_path) == [(16, tokens(door, 16)), (None, None)]


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
