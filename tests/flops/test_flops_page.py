"""docs/flops-evidence.md says what the zoo says."""

from pathlib import Path

import pytest
from flops.model_kinds import RELEASE
from flops.zoo import CASES
from rows import each_row

PAGE = (Path(__file__).parents[2] / "docs" / "flops-evidence.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("|")]
ZOO = {tuple(row[:4]): row[4:] for row in ROWS if len(row) == 9}
MEASURED_WITH = 5


def settings(case):
    return case.family, case.attention, case.checkpointing, case.training


def test_the_table_has_every_model_that_the_tests_count():
    _, _, *rows = ZOO
    assert rows == [settings(case) for case in CASES]


@pytest.mark.skipif(RELEASE < MEASURED_WITH, reason="older models have products that newer ones don't")
@each_row("case", CASES)
def test_a_row_is_what_the_model_costs_by_hand(case):
    hand = case.formula()
    model, replayed = f"{hand.model_flops:,}", f"{hand.by_phase.get('recompute', 0):,}"
    assert ZOO[settings(case)] == [model, model, "1.000000", replayed, replayed]
