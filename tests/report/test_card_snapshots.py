"""Cards compared whole with snapshots: at 40, 60, 80 and 120 columns, piped, and with NO_COLOR.

`WRITE_SNAPSHOTS=1 python -m pytest tests/report/test_card_snapshots.py` writes them anew.
"""

import os
import random
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import BLOCKING, LOADER, OPTIMIZER, a_run
from journals import a_fit, a_summary, steps, write
from snapshots import matches

from perf_callbacks.commands import main
from perf_callbacks.kernel.process.terminal import columns
from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import APPLIED, Checklist
from perf_callbacks.report import cards, opening_card

NO_TERMINALS = "Windows has no pseudo-terminals, which give a card its width"
fcntl = pytest.importorskip("fcntl", reason=NO_TERMINALS)
termios = pytest.importorskip("termios", reason=NO_TERMINALS)

SNAPSHOTS = Path(__file__).with_name("cards")

SLOW = replace(LOADER, share=0.25, evidence="Waiting for data took 25% of the run: num_workers=0")
ITEMS = [
    Checklist(
        item="gc",
        status=APPLIED,
        before="automatic, thresholds 700/10/10",
        after="every 100 steps, full every 1,000",
    ),
    Checklist(item="loaders", status="not applicable", before="not pinned", why="there is no accelerator to copy to"),
    Checklist(
        item="affinity", status="advised", before="CPUs 0-63", after="CPUs 0-15", why="the GPU is on NUMA node 0"
    ),
]
WHOLE = {
    "findings": (SLOW, OPTIMIZER, BLOCKING), "lost_steps": 3,
    "stage_seconds": {"data_time": 1.0, "forward_time": 1.0, "backward_time": 1.75, "gc_time": 0.0, "other_time": 0.75},
    "other_seconds": {"generation": 0.5}, "model_flops": 72 * 10**12, "hardware_flops": 9 * 10**13,
    "peak_flops_per_second": 4e13, "flops_source": "counted", "flops_checked_step": 115, "flops_coverage": 1.0,
    "flops_lower_bound": True, "flops_uncounted": ("aten::special_product",), "compared_steps": 18,
    "compared_seconds": 4.5, "straggler_seconds": {"data": 1.5}, "stragglers": ((1, "data", 1.5, 4),), "slowdown": 1.5,
    "backward_waiting": 0.25, "stalls": 1, "stall_seconds": 61.0,
    "memory_gb": {"weights": 2.0, "gradients": 1.0, "activations": 5.0, "peak": 8.0},
    "failure": "OSError: No space left on device",
}  # fmt: skip


def opening(_folder):
    run = a_run(device="NVIDIA H200", timeline="device", world_size=8, attempt=2, step=40, from_env=("gc", "window"))
    journal = "out/perf_callbacks/rank0.jsonl"
    print(opening_card.opening(run, journal=journal, checklist=ITEMS, findings=[BLOCKING], columns=columns()))


def closing(_folder):
    summary = a_summary(**WHOLE)
    heaviest = (("lm_head", 0.6), ("model.layers.*.mlp.up_proj", 0.25), ("model.layers.*.attn", 0.1))
    flops = replace(summary.flops, heaviest_modules=heaviest)
    print(cards.closing(replace(summary, flops=flops), ITEMS, columns()))


def healthy(_folder):
    summary = a_summary(findings=(), model_flops=None, wall_seconds={"startup": 0.5, "steps": 5.0})
    print(cards.closing(summary, columns=columns()))


def live(_folder):
    print(cards.live(SLOW, 60.0, columns()))


def check(_folder):
    peak = "Peak: 989.5 TFLOPS dense bfloat16 by the data sheet."
    print(opening_card.check("NVIDIA H200", ITEMS, peak, [BLOCKING], columns()))


def memory(folder):
    main(["memory", str(write(folder, a_fit(0, world_size=2), a_fit(1, world_size=2)))])


def compare(folder):
    rng = random.Random(0)
    for name, seconds in (("a", 0.25), ("b", 0.3)):
        times = tuple([seconds * (1 + 0.02 * rng.random()) for _ in range(200)])
        run = a_run(config={"gc": "sync" if name == "a" else "observe"})
        write(
            folder / name,
            [
                Entry(0.0, run),
                Entry(1.0, steps(1, 200, step_time=times, samples=(4,) * 200, model_flops=(10**12,) * 200)),
            ],
        )
    main(["compare", str(folder / "a"), str(folder / "b")])


CARDS = {card.__name__: card for card in (opening, closing, healthy, live, check, memory, compare)}


def on_terminal(monkeypatch, width, show):
    """Show a card on a terminal of so many columns, and return what it was sent."""
    ours, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with os.fdopen(terminal, "w", encoding="utf-8") as stdout:
        assert stdout.isatty()
        monkeypatch.setattr("sys.stdout", stdout)
        show()
        print(end="\0", flush=True)
        text = b""
        while not text.endswith(b"\0"):
            text += os.read(ours, 65_536)
    os.close(ours)
    return text[:-1].decode().replace("\r\n", "\n")


SCREENS = {"40": 40, "60": 60, "80": 80, "120": 80, "20": 40, "NO_COLOR": 80}
"""Terminals, and the columns that a card may fill on them."""


@pytest.mark.parametrize("screen", [*SCREENS, "piped"])
@pytest.mark.parametrize("card", CARDS)
def test_a_card_fits_into_the_terminal_and_has_no_escape_codes(card, screen, tmp_path, monkeypatch, capsys):
    """Tables of numbers keep their columns, and paths stay whole: a terminal breaks those itself."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    if screen == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    if screen == "piped":
        CARDS[card](tmp_path)
        shown = capsys.readouterr().out
    else:
        width = 80 if screen == "NO_COLOR" else int(screen)
        shown = on_terminal(monkeypatch, width, lambda: CARDS[card](tmp_path))
    limit = SCREENS.get(screen, 80)
    snapshot = SNAPSHOTS / (f"{card}.txt" if limit == 80 else f"{card}-{limit}.txt")
    assert matches(snapshot, shown)
    assert "\x1b" not in shown
    wide = [line for line in shown.splitlines() if len(line) > limit]
    assert limit < 80 or not wide
    assert card == "compare" or all(max(map(len, line.split())) > limit - 8 for line in wide), wide


@pytest.mark.parametrize(
    "stream",
    [object(), SimpleNamespace(isatty=True), SimpleNamespace(isatty=lambda: True, fileno=lambda: None)],
    ids=["nothing", "an attribute", "no number"],
)
def test_a_stream_without_a_terminal_has_80_columns(monkeypatch, stream):
    monkeypatch.setattr("sys.stdout", stream)
    assert columns() == 80
