"""Tables of the documentation say what the registries say."""

import pytest
from doc_tables import DOCS, TABLES

from perf_callbacks.kernel.records.metric_table import METRICS


@pytest.mark.parametrize("page", TABLES)
def test_a_page_has_the_table_of_its_registry(page):
    assert TABLES[page]() in (DOCS / page).read_text(encoding="utf-8"), "run `make tables`"


def test_each_metric_stands_once():
    assert len({metric.key for metric in METRICS}) == len(METRICS)
