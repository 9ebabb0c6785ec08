"""Titles of runs, from what their `run` records know."""

from fakes import a_run
from rows import each_row

from perf_callbacks.report.run_title import details, subject, title


@each_row(
    ("known", "expected"),
    [
        ({"program": "/home/me/train.py", "model": "Llama", "host": "node7"}, "train.py · Llama · on node7"),
        ({"program": "my.train", "host": "node7"}, "my.train · on node7"),
        ({"program": "C:\\jobs\\train.py"}, "train.py"),
        ({"program": "jobs/__main__.py"}, "jobs"),
        ({"program": "-c", "model": "Net"}, "Net"),
        ({"program": "", "host": "node7"}, "loop a1 · on node7"),
        ({"program": "/", "run_id": "0123456789abcdef"}, "loop 01234567"),
        ({"model": "two\nlines"}, "two lines"),
        ({"model": "x" * 30 + "y" * 30}, "x" * 24 + "…" + "y" * 23),
    ],
)
def test_a_title_names_program_model_and_host(known, expected):
    assert title(a_run(**known)) == expected
    assert subject(a_run(**known)) == expected.removesuffix(" · on node7")


def test_details_are_left_out_if_unknown():
    assert details(a_run(), 1) == "cpu · 1 process"
    known = a_run(parameters=12_300_000, job_id="4711", attempt=2, step=1500)
    assert details(known, 8) == "12.3 M parameters · cpu · 8 ranks · job 4711 · attempt 2 from step 1,500"
