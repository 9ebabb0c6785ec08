"""The card of a summary as HTML, as Jupyter asks for it."""

import re
from html import unescape

import pytest
from jobs import run
from journals import a_summary

from perf_callbacks.kernel.records.fit_records import Finding
from perf_callbacks.report import cards


def test_a_card_has_the_verdict_and_all_lines():
    summary = a_summary()
    shown = summary._repr_html_()
    verdict, rest = re.fullmatch(r"<div><b>(.*)</b><pre style=.*?>(.*)</pre></div>", shown, re.DOTALL).groups()
    assert unescape(verdict) == cards.verdict(summary)
    assert [unescape(verdict), *unescape(rest).split("\n")] == cards.lines(summary)
    assert " ".join(cards.closing(summary).split()).endswith(" ".join(unescape(rest).split()))


@pytest.mark.needs_torch
@pytest.mark.parametrize("module", ["perf_callbacks.journal", "perf_callbacks.loop"])
def test_a_program_that_has_a_summary_has_its_card(tmp_path, module):
    script = tmp_path / "card.py"
    script.write_text(f"import {module}; from perf_callbacks import Summary; print(callable(Summary._repr_html_))")
    assert run(script, imports=("torch._dynamo",), directory=tmp_path)[:2] == (0, "True\n")


EVIL = "</pre><script>alert(1)</script>\x1b[2J\u202e&\nsecond line"


def test_texts_of_a_foreign_summary_are_shown_and_never_run():
    found = Finding(cause="data", share=0.5, evidence=EVIL, remedy=EVIL)
    shown = a_summary(findings=(found,), failure=EVIL, stage_seconds={EVIL: 1.0})._repr_html_()
    assert {*re.findall(r"<(/?\w+)", shown)} == {"div", "b", "/b", "pre", "/pre", "/div"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;?[2J?&amp; second line" in shown
    assert [one for one in shown if not one.isprintable() and one not in "\n\N{NO-BREAK SPACE}"] == []


def test_contradicting_values_give_no_card():
    assert a_summary(included_samples=10**400)._repr_html_() is None
