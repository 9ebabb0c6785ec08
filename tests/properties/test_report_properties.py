"""Reports and traces of journals that no run has written."""

import json
import random

from hypothesis import given, settings, strategies as st
from journals import Outline, a_fit

from perf_callbacks.kernel.records.codec import decode, encode
from perf_callbacks.report.history import gather
from perf_callbacks.report.page import render
from perf_callbacks.report.payload import payload
from perf_callbacks.report.trace import trace

NUMBERS = [0, -1, 1, 3, 2**63, -(2**90), 2**127, 1e308, -1e308, 1e-308, 0.5, None, True, "x", [], {}]


def twisted(value, random):
    """The value, of which some parts are replaced."""
    if random.random() < 0.05:
        return random.choice(NUMBERS)
    if isinstance(value, dict):
        return {name: twisted(one, random) if name != "type" else one for name, one in value.items()}
    return [twisted(one, random) for one in value] if isinstance(value, list) else value


def everything(lines):
    """All that is made of a journal."""
    for number, fit in enumerate(fits := gather([filter(None, map(decode, lines))]), start=1):
        json.loads(Outline(render(payload(fits, number))).data)
        json.loads("".join(trace(fit)))


LINES = [encode(entry) for entry in [*a_fit(0, world_size=2), *a_fit(1, world_size=2), *a_fit(0, attempt=2, step=11)]]


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_hostile_values_cost_no_more_than_themselves(seed):
    chance = random.Random(seed)
    everything([json.dumps(twisted(json.loads(line), chance)) for line in LINES])


@settings(max_examples=40)
@given(st.data())
def test_a_journal_may_be_cut_at_any_byte(data):
    text = "\n".join(LINES).encode()
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, len(text)))
    everything(text[first:last].decode(errors="replace").split("\n"))
