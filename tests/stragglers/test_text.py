"""Sentences about stragglers, in the closing card and as advice."""

from dataclasses import replace
from pathlib import Path

import pytest
from rows import each_row
from snapshots import matches
from summaries import a_summary_of

from perf_callbacks.advice.facts import Facts, Measured
from perf_callbacks.advice.straggler import straggler, uneven_batches, uneven_stages
from perf_callbacks.stragglers.slow_sets import SlowRank
from perf_callbacks.stragglers.text import SYNCED_REMEDIES, lines, slow_rank


def lines_of(of):
    return lines(of.stragglers)


OTHERS = {
    "costliest_ranks",
    "uneven_batches_seconds",
    "uneven_stages_seconds",
    "chance_seconds",
    "comparable",
    "other_work",
    "undecided_steps",
}
"""Figures that `a_summary_of` has no name for."""


def summary(**changes):
    usual = {
        "run_id": "a", "attempt": 1, "step": 100, "steps": 100, "included_steps": 100, "included_seconds": 100.0,
        "stage_seconds": {"forward_time": 100.0}, "wall_seconds": {"steps": 100.0}, "samples": 1, "tokens": 1,
        "included_samples": 1, "included_tokens": 1, "included_useful_tokens": 1, "total_samples": 1,
        "total_tokens": 1, "gc_collections": None, "gc_seconds": None, "gc_longest": None,
        "compared_steps": 100, "compared_seconds": 100.0, "slowdown": 1.2,
        "straggler_seconds": {"gc": 10.0, "data": 6.2},
        "stragglers": ((3, "gc", 10.0, 38), (0, "data", 6.0, 1), (1, "data", 0.2, 1)),
    }  # fmt: skip
    newer = {name: changes.pop(name) for name in OTHERS & changes.keys()}
    found = a_summary_of(**usual | changes)
    return replace(found, stragglers=replace(found.stragglers, **newer))


def on_device(**changes):
    """A fit on a device, where the host doesn't wait for other ranks."""
    found = summary(**changes)
    return replace(found, stragglers=replace(found.stragglers, waits_timed=False))


ALONE = {"slowdown": None, "stragglers": ((0, "data", 6.0, 2),), "straggler_seconds": {"data": 6.0}}
QUIET = {"stragglers": (), "straggler_seconds": {}}
CASES = {
    "the worst ranks, with cause, cost and remedy": summary(backward_waiting=0.25),
    "small losses of many ranks": summary(
        stragglers=tuple([(rank, "host", 2.0, 3) for rank in range(8)]), straggler_seconds={"host": 30.0}
    ),
    "sets of slow ranks": summary(
        stragglers=((7, "host", 10.0, 38), (0, "data", 6.2, 12)), costliest_ranks=((3, 7), tuple(range(64)))
    ),
    "uneven work, and chance": summary(
        stragglers=(),
        straggler_seconds={},
        uneven_batches_seconds=20.0,
        uneven_stages_seconds=12.0,
        chance_seconds=3.0,
    ),
    "all causes": summary(
        stragglers=((0, "steal", 3.0, 1), (1, "device", 2.0, 1)), straggler_seconds={"steal": 3.0, "device": 2.0}
    ),
    "ranks that are equally fast": summary(**QUIET, slowdown=1.0),
    "ranks that compute on a device": on_device(**QUIET, slowdown=1.0),
    "a model that is sharded over devices": on_device(**QUIET, compared_model=False),
    "ranks that may wait unseen on devices": on_device(**QUIET, slowdown=None, undecided_steps=80),
    "ranks whose waits are not seen": summary(**QUIET, compared_steps=0, comparable=False),
    "ranks that do different work": summary(**QUIET, compared_steps=0, other_work=4),
    "some ranks that do other work": summary(**QUIET, slowdown=1.0, other_work=1),
    "a single process": summary(**ALONE),
    "a single process without slow steps": summary(**QUIET, slowdown=None),
}


def test_every_sentence_is_as_in_the_snapshot():
    """`WRITE_SNAPSHOTS=1 python -m pytest tests/stragglers/test_text.py` writes it anew."""
    shown = "".join([f"{case}\n" + "".join([f"  {line}\n" for line in lines_of(of)]) for case, of in CASES.items()])
    slow = SlowRank(rank=3, step=200, steps=100, share=0.12, causes={"data": 0.7, "host": 0.25, "gc": 0.05})
    shown += f"a rank that is slow while training runs\n  {slow_rank(slow)}\n"
    several = SlowRank(rank=7, ranks=(3, 7), step=200, steps=100, share=0.12, causes={"host": 1.0})
    shown += f"ranks that are slow while training runs\n  {slow_rank(several)}\n"
    collects = SlowRank(rank=3, step=200, steps=100, share=0.12, causes={"gc": 1.0})
    shown += f'a rank that collects garbage under gc="sync"\n  {slow_rank(collects, SYNCED_REMEDIES)}\n'
    assert matches(Path(__file__).with_name("sentences.txt"), shown)


def test_the_lines_name_the_worst_rank_first_and_sum_up_the_rest():
    assert [line[:7] for line in lines_of(summary())] == ["rank 3 ", "rank 0 "]
    sentences = [*lines_of(CASES["small losses of many ranks"])]
    assert (len(sentences), "24 s" in sentences[-1]) == (4, True)
    assert [*lines_of(summary(compared_steps=0))] == []


def test_the_line_of_the_costliest_ranks_has_the_remedy_of_the_verdict():
    first, second = lines(summary().stragglers, "removing calls of gc.collect(), first at train.py:40 `train`")
    assert first.endswith(
        "garbage collection, 38 pauses; try removing calls of gc.collect(), first at train.py:40 `train`"
    )
    assert second.endswith("try more loader workers, or data nearer to the rank")


def test_the_advice_names_the_worst_rank_and_the_share_of_all():
    """`tests/advice/wordings.txt` has its sentences."""
    finding = straggler(Facts(), Measured(summary()))
    assert (finding.cause, finding.share) == ("straggler", pytest.approx(0.162))
    assert "rank 3" in finding.evidence
    several = straggler(Facts(), Measured(summary(costliest_ranks=((3, 7), (), ()))))
    assert "ranks 3 and 7" in several.evidence


def test_uneven_work_is_a_finding_of_its_own_with_its_share():
    of = Measured(summary(uneven_batches_seconds=20.0, uneven_stages_seconds=12.0))
    found = [rule(Facts(), of) for rule in (uneven_batches, uneven_stages)]
    assert [(one.cause, one.share) for one in found] == [("uneven", 0.2), ("uneven", 0.12)]
    trainer = uneven_batches(Facts(options={"train_sampling_strategy": "TrainingArguments"}), of)
    assert 'train_sampling_strategy="batch_rebalance"' in trainer.remedy
    nothing = Measured(summary(uneven_batches_seconds=0.0))
    assert [rule(Facts(), one) for rule in (uneven_batches, uneven_stages) for one in (nothing, None)] == [None] * 4


@each_row("changes", [{"slowdown": None}, {"stragglers": ()}, {"included_steps": 2}])
def test_the_advice_is_silent_where_no_rank_is_slow(changes):
    assert straggler(Facts(), Measured(summary(**changes))) is None
