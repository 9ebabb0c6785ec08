"""Tables of the documentation say what the registries say."""

import re
from typing import get_args

import pytest
from doc_tables import DOCS, TABLES

from perf_callbacks.journal import Record
from perf_callbacks.kernel.records.metric_table import METRICS


@pytest.mark.parametrize("page", TABLES)
def test_a_page_has_the_table_of_its_registry(page):
    assert TABLES[page]() in (DOCS / page).read_text(encoding="utf-8"), "run `make tables`"


def test_each_metric_stands_once():
    assert len({metric.key for metric in METRICS}) == len(METRICS)


def test_the_page_of_the_journal_has_each_kind_of_record_once():
    page = (DOCS / "journal.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(kinds) == sorted(kind.__name__.lower() for kind in get_args(Record))
