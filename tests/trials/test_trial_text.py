"""What `perf-callbacks try` prints.

`WRITE_SNAPSHOTS=1 python -m pytest tests/trials/test_trial_text.py` writes the snapshot anew.
"""

import json
from pathlib import Path

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


def test_every_table_and_object_is_as_in_the_snapshot():
    shown = ""
    for name, result in RESULTS.items():
        rounded = json.loads(json.dumps(text.as_json(result)), parse_float=lambda number: round(float(number), 6))
        shown += "\n".join([f"== {name}", *text.lines(result), json.dumps(rounded, indent=1), "", ""])
    assert matches(Path(__file__).with_name("tables.txt"), shown)


def test_a_refusal_says_why():
    refusals = [text.refused(TrialOutcome(why=why, place="a.log, at train.py:3")) for why in (SAVES, RESUMES, FAILED)]
    begins = [
        "the program writes a.log, at train.py:3. With --yes",
        "the program resumes from a checkpoint at a.log, at train.py:3. With --yes",
        "a.log, at train.py:3",
    ]
    assert [refusal.startswith(begin) for refusal, begin in zip(refusals, begins, strict=True)] == [True] * 3
