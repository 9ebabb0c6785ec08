"""What `perf-callbacks try` prints.

`WRITE_SNAPSHOTS=1 python -m pytest tests/trials/test_trial_text.py` writes the snapshot anew.
"""

from pathlib import Path

import pytest
from snapshots import matches

from perf_callbacks.trials import text
from perf_callbacks.trials.plan import FAILED, RESUMES, SAVES, TrialOutcome
from perf_callbacks.trials.remedies import REMEDIES, Candidate
from perf_callbacks.trials.text import BASE, TOGETHER, TrialResults

LOSSES = (1.0, 0.5)
KINDS = {remedy.name: remedy for remedy in REMEDIES}


def candidate(name, value=None, line="the line to write"):
    return Candidate(remedy=KINDS[name], value=value, line=line)


WORKERS = candidate("workers", 2, "DataLoader(num_workers=2)")
FUSED = candidate("optimizer", None, "torch.optim.AdamW(..., fused=True)")
PRECISION = candidate("precision", None, 'torch.set_float32_matmul_precision("high")')
CANDIDATES = (WORKERS, FUSED, PRECISION)


def outcome(seconds, losses=LOSSES):
    return TrialOutcome(steps=100, seconds=100 * seconds, losses=losses)


def a_round(factor=1.0):
    return {
        BASE: outcome(0.2 * factor),
        WORKERS.title: outcome(0.1 * factor),
        FUSED.title: outcome(0.199 * factor**1.1, (1.0, 0.5001)),
        PRECISION.title: outcome(0.18, (1.0, 0.6)),
        TOGETHER: outcome(0.08, (1.0, 0.6)),
    }


TITLES = tuple(one.title for one in CANDIDATES)
WHOLE = TrialResults(
    program="train.py --lr 1", candidates=CANDIDATES, rounds=[a_round(), a_round(1.01), a_round(0.98)],
    together=TITLES, launches=15, seconds=300.0,
)  # fmt: skip
ONE_ROUND = TrialResults(program="train.py", candidates=CANDIDATES, rounds=[a_round()], together=TITLES)
INTERRUPTED = TrialResults(
    program="train.py", candidates=CANDIDATES, partial={BASE: outcome(2.0), WORKERS.title: outcome(1.0)},
    interrupted=True,
)  # fmt: skip
AT_ONCE = TrialResults(program="train.py", interrupted=True)
SLOWER = TrialResults(
    program="train.py",
    candidates=(WORKERS,),
    rounds=[{BASE: outcome(0.1 * one), WORKERS.title: outcome(0.15)} for one in (1.0, 1.01)],
)
NO_CHANGE = TrialResults(
    program="train.py", candidates=(WORKERS, FUSED), rounds=[{BASE: outcome(0.0001)}] * 2,
    failed={WORKERS.title: text.NOT_APPLIED, FUSED.title: "no end after 120 s"},
)  # fmt: skip
UNSTEADY = TrialResults(
    program="train.py",
    candidates=(WORKERS,),
    rounds=[{BASE: outcome(0.2, (one,)), WORKERS.title: outcome(0.1, (one,))} for one in (1.0, 2.0)],
)
RESULTS = {
    "all": WHOLE, "one round": ONE_ROUND, "interrupted": INTERRUPTED, "interrupted at once": AT_ONCE,
    "slower": SLOWER, "nothing could be changed": NO_CHANGE, "losses differ by themselves": UNSTEADY,
}  # fmt: skip


def test_every_table_is_as_in_the_snapshot():
    shown = "\n\n".join([f"== {name}\n" + "\n".join(text.lines(result)) for name, result in RESULTS.items()]) + "\n"
    assert matches(Path(__file__).with_name("tables.txt"), shown)


def test_the_json_object():
    found = text.as_json(WHOLE)
    assert [*found] == [
        "program", "settings", "together", "failed", "interrupted", "write", "launches", "seconds",
    ]  # fmt: skip
    assert [one["setting"] for one in found["settings"]] == [BASE, *TITLES, TOGETHER]
    base, workers = found["settings"][:2]
    assert base == {
        "setting": BASE, "remedy": None, "value": None, "line": None,
        "step_seconds": pytest.approx([0.2, 0.202, 0.196]), "faster": None, "low": None, "high": None,
        "called_for": None, "promised": None, "loss": None,
    }  # fmt: skip
    assert (workers["remedy"], workers["value"], workers["line"]) == ("workers", 2, WORKERS.line)
    assert workers["called_for"]
    assert workers["low"] < workers["faster"] < workers["high"]
    assert workers["faster"] == pytest.approx(2.0)
    assert found["write"] == [WORKERS.line, PRECISION.line]
    assert [one["loss"] for one in found["settings"][1:]] == [
        "the same", "close", "changed, by design", "changed, by design",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "sentence"),
    [
        (SAVES, "the program writes a.log, at train.py:3. With --yes"),
        (RESUMES, "the program resumes from a checkpoint at a.log, at train.py:3. With --yes"),
        (FAILED, "a.log, at train.py:3"),
    ],
)
def test_a_refusal(why, sentence):
    assert text.refused(TrialOutcome(why=why, place="a.log, at train.py:3")).startswith(sentence)
