"""Reports: pure functions that turn records into text."""

from perf_callbacks.kernel.records.fit_records import Summary


def _card(summary: Summary) -> str | None:
    from perf_callbacks.report import run_card  # noqa: PLC0415 most programs show no card in a notebook

    return run_card.html(summary)


Summary._repr_html_ = _card
