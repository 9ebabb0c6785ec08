"""`docs/llms.txt`, an index of the pages for language models: https://llmstxt.org."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "llms.txt").read_text(encoding="utf-8")
LINKS = re.findall(r"^- \[([^]]+)\]\(([^)]+)\): \S.*\.$", TEXT, re.MULTILINE)


def test_the_index_has_a_title_a_summary_and_lists_of_links():
    top, *sections = TEXT.split("\n## ")
    assert re.match(r"# perf_callbacks\n\n> \S.*\n\n", top)
    assert [one for one in sections if not re.fullmatch(r"[^\n]+\n\n(- [^\n]+\n)+", one)] == []
    assert len(LINKS) == TEXT.count("\n- ")


def test_the_index_lists_each_page_once_by_its_title():
    titles = {
        str(path.relative_to(DOCS)): path.read_text(encoding="utf-8").partition("\n")[0] for path in DOCS.rglob("*.md")
    }
    assert {page: f"# {title}" for title, page in LINKS} == titles
    assert len({*LINKS}) == len(LINKS)
