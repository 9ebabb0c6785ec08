"""What a summary says of the items that were tried."""

import pytest

from perf_callbacks.core.records import Checklist
from perf_callbacks.core.steps import NEVER
from perf_callbacks.session.upkeep import Keeping


class Telling:
    """Does nothing, and has rows to tell."""

    due = NEVER

    def __init__(self, *rows):
        self.rows = [*rows]

    def news(self):
        rows, self.rows = self.rows, []
        return rows


def a_row(status, why=None, **more):
    return Checklist(item="gc", status=status, why=why, **more)


TRIED = a_row("on trial", "done and left in turns")
KEPT = a_row("applied", "it saves 2 ms", saved_seconds=(0.001, 0.002, 0.003))
LATER = a_row("applied", "every 50 steps from step 400 on: some rank needs it")
ENDED = a_row("skipped", "somebody turned automatic collection on before step 90, and it stays on")


@pytest.mark.parametrize(
    ("rows", "proofs"),
    [
        ((a_row("applied"),), {}),
        ((a_row("failed", "OSError: gone"),), {}),
        ((TRIED,), {"gc": "on trial"}),
        ((TRIED, LATER), {"gc": "on trial"}),
        ((TRIED, KEPT), {"gc": KEPT.why}),
        ((TRIED, KEPT, LATER), {"gc": KEPT.why}),
        ((TRIED, KEPT, ENDED), {"gc": ENDED.why}),
        ((TRIED, ENDED), {"gc": ENDED.why}),
        ((TRIED, a_row("failed", "OSError: gone")), {"gc": "OSError: gone"}),
        ((TRIED, a_row("skipped", "it was not kept: too few")), {"gc": "it was not kept: too few"}),
    ],
)
def test_what_came_of_a_trial_is_the_last_that_was_said_of_it(rows, proofs):
    journal = []
    keeping = Keeping(journal.append)
    keeping.take(Telling(*rows))
    assert keeping.proofs == proofs
    assert journal == [*rows]
