"""Runs that `perf-callbacks watch` shows, as the ends of their journals: healthy, with a straggler, hanging, killed."""

from dataclasses import replace
from pathlib import Path

from fakes import a_run
from journals import FINDING, a_summary, steps

from perf_callbacks.kernel.records.codec import Entry
from perf_callbacks.kernel.records.fit_records import Finding, Gc, Span
from perf_callbacks.kernel.records.journal_ends import FitEnds
from perf_callbacks.kernel.records.rank_records import Stall, Straggler
from perf_callbacks.kernel.records.signs_of_life import Signs
from perf_callbacks.kernel.records.summary_parts import StallSummary, StragglerSummary

BEGAN, LASTS = 2_000_000.0, 300.0

SLOW = Finding(
    cause="straggler",
    share=0.3,
    low=0.28,
    evidence="The job waited for slow ranks for 30% of its steps, longest for rank 3: waiting for data, 75 s of 250 s",
    remedy="more loader workers, or data nearer to the rank",
)
WHERE = "Rank 2 is in data: loader.py:41 `fetch`. 3 ranks wait in backward: train.py:50 `main`."


def ends(*records, rank=0, ranks=1, so_far=None, ended=None, pid=None, gone=None, wait=0.0625, at=LASTS, **run):
    """The ends of a rank's journal: 50 steps, and further records of the last seconds."""
    usual = {"run_id": "1f0c", "program": "jobs/train.py", "model": "Llama", "host": "node7", "parameters": 12_300_000}
    record = a_run(rank=rank, world_size=ranks, **usual | {"started_unix": BEGAN} | run)
    waits = (wait,) * 50
    block = steps(951, 1000, data_time=waits, backward_time=(0.1875 - wait,) * 50, step_time=(0.25,) * 50)
    last = [one if isinstance(one, Entry) else Entry(at, one) for one in records]
    return FitEnds(
        journal=Path(f"/data/out/perf_callbacks/rank{rank}.jsonl"),
        run=record,
        first=(),
        latest=(Entry(at - 2.0, block), *last, *([] if ended is None else [Entry(at, ended)])),
        interim=None if so_far is None else Entry(at, so_far),
        unreadable=0,
        signs=Signs(BEGAN + at, pid, gone),
    )


def so_far(**changes):
    parts = {name: changes.pop(name) for name in ("stalls", "stragglers") if name in changes}
    usual = {"run_id": "1f0c", "step": 1000, "steps": 1000, "included_steps": 998, "included_seconds": 249.5}
    return replace(a_summary(**usual | {"wall_seconds": {"startup": 5.0, "steps": 250.0}} | changes), **parts)


def healthy():
    calm = so_far(stage_seconds={"forward_time": 100.0, "backward_time": 110.0, "optimizer_time": 30.0}, findings=())
    events = [
        Entry(280.0, Span(kind="evaluation", step=900, start=268.0, seconds=12.0)),
        Entry(290.0, Gc(step=940, stage="other", generation=2, start=289.8, seconds=0.2, collected=5, automatic=True)),
    ]
    return [ends(*events, so_far=calm, pid=4711)]


def straggler():
    compared = StragglerSummary(
        steps=1000, seconds=250.0, seconds_by_cause={"data": 75.0}, costliest=((3, "data", 75.0, 900),), slowdown=1.4
    )
    first = so_far(stragglers=compared, findings=(SLOW, FINDING))
    records = [
        Entry(at, Straggler(step=step, rank=3, cause="data", seconds_lost=3.75, steps=50))
        for at, step in ((200.0, 800), (285.0, 950), (299.0, 1000))
    ]
    others = [ends(rank=rank, ranks=4, so_far=so_far(findings=())) for rank in (1, 2)]
    return [
        ends(*records, ranks=4, so_far=first), *others,
        ends(rank=3, ranks=4, so_far=so_far(findings=(FINDING,)), wait=0.15),
    ]  # fmt: skip


def hang():
    """Rank 2 fetches a batch for ever."""
    stalls = StallSummary(count=1, seconds=60.0, under_way=True, where=WHERE)
    found = Finding(cause="stall", share=0.3, evidence="The training hangs", remedy="`perf-callbacks watch`")
    waits = ("jobs/train.py:60 <module>", "jobs/train.py:50 main", "torch/_tensor.py:630 backward")
    fetches = ("jobs/train.py:60 <module>", "jobs/train.py:44 main", "/data/jobs/loader.py:41 fetch")
    stacks = [waits, waits, fetches, waits]
    own = [
        Stall(step=1000, rank=rank, stage="data" if rank == 2 else "backward", since_seconds=60.0, stack=stack)
        for rank, stack in enumerate(stacks)
    ]
    records = [[own[0], own[2]], *[[one] for one in own[1:]]]
    summaries = [so_far(stalls=stalls, findings=(found,)), *[so_far(stalls=replace(stalls, where=None))] * 3]
    return [
        ends(*records[rank], rank=rank, ranks=4, so_far=summaries[rank], pid=4711 + rank) for rank in range(4)
    ]  # fmt: skip


def kill():
    return [replace(one, signs=Signs(BEGAN + LASTS, None)) for one in straggler()]


def ended():
    return [ends(FINDING, ended=so_far())]


CASES = {"healthy": healthy, "straggler": straggler, "hang": hang, "kill": kill, "ended": ended}
