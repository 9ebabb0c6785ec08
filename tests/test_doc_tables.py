"""Tables of the documentation say what the registries say."""

import sys

import pytest
from doc_tables import DOCS, TABLES, with_commands
from rows import each_row

from perf_callbacks.kernel.records.metric_table import METRICS


@each_row(("page", "rows"), [(page, rows) for page, tables in TABLES.items() for rows in tables])
def test_a_page_has_the_table_of_its_registry(page, rows):
    assert rows() in (DOCS / page).read_text(encoding="utf-8"), "run `make tables`"


def test_each_metric_stands_once():
    assert len({metric.key for metric in METRICS}) == len(METRICS)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse writes its help in another form")
def test_the_page_of_commands_has_the_help_of_each():
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert page == with_commands(page), "run `make tables`"
