"""A short fit through each integration, as a person sees it: two cards, one opening record, and a switch."""

import gc

import pytest
import torch
from trainings.doors import DOORS
from trainings.runs import records, unwrapped

from perf_callbacks.kernel.records.fit_records import Run

pytestmark = pytest.mark.usefixtures("accelerate_state")

STAGES = ("data", "forward", "backward", "optimizer", "gc", "other")
VERSIONS = {
    "transformers": {"transformers", "accelerate"},
    "loop": set(),
    "accelerate": {"accelerate"},
    "lightning": {"lightning"},
    "pytorch_lightning": {"pytorch_lightning"},
}
"""Libraries whose versions the opening record has, besides those of every fit."""


@pytest.mark.parametrize("door", DOORS)
def test_a_card_opens_the_fit_and_a_table_closes_it(tmp_path, capsys, door):
    DOORS[door](tmp_path).run()
    printed = unwrapped(capsys.readouterr().out).splitlines()
    first, verdict = [number for number, line in enumerate(printed) if line.startswith("perf_callbacks")]
    (journal,) = tmp_path.rglob("rank0.jsonl")
    assert printed[first].endswith(f"journal {journal}")
    statuses = {"gc": "applied", "loaders": "not applicable", "affinity": "not applicable"}
    for line, (item, status) in zip(printed[first + 1 : first + 4], statuses.items(), strict=True):
        assert " ".join(line.split()).startswith(f"{item} {status}")
    assert sum(line.startswith("  8 steps, ") for line in printed[verdict:]) == 1
    table = [line[2:12].rstrip() for line in printed[verdict:]]
    assert [stage for stage in table if stage in STAGES] == [*STAGES]
    assert printed.count("  checklist: " + ", ".join(map(" ".join, statuses.items()))) == 1


@pytest.mark.parametrize("door", DOORS)
def test_the_opening_record_says_where_and_with_what_it_ran(tmp_path, monkeypatch, door):
    monkeypatch.setenv("PERF_CALLBACKS_GC", "off")
    DOORS[door](tmp_path, steps=2).run()
    (run,) = records(tmp_path, Run)
    assert run.door == door.removeprefix("pytorch_")
    assert (run.device, run.timeline, run.rank, run.world_size, run.step) == ("cpu", "host", 0, 1, 0)
    assert run.from_env == ("gc",)
    assert run.versions.keys() >= VERSIONS[door] | {"perf_callbacks", "python", "torch", "numpy"}


@pytest.mark.parametrize("switch", ["environment", "configuration"])
@pytest.mark.parametrize("door", DOORS)
def test_a_fit_that_is_switched_off_leaves_everything_alone(  # noqa: PLR0917 fixtures
    tmp_path, monkeypatch, capsys, caplog, door, switch
):
    if switch == "environment":
        monkeypatch.setenv("PERF_CALLBACKS", "0")

    def world():
        return torch.autograd.backward, [*gc.callbacks]

    before, seen = world(), []
    config = {"enabled": False} if switch == "configuration" else {}
    done = DOORS[door](tmp_path, after_step=lambda _: seen.append(world()), **config).run()
    assert seen == [before] * 8
    assert done.summary is None
    assert not [*tmp_path.rglob("*.jsonl")]
    assert "perf_callbacks" not in capsys.readouterr().out
    assert [record for record in caplog.records if record.name == "perf_callbacks"] == []
