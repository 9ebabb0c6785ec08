"""Ranks whose programs are compiled train as without us, to the last bit, whatever differs between the ranks."""

import json

import pytest
from forked import ranks, said

RANKS = (0, 1)
KINDS = (
    "tensor",
    "tensor_checkpointed",
    "tensor_blocks",
    "tensor_three_blocks",
    "sharded",
    "sharded_blocks",
    "data_parallel",
    "data_parallel_in_place",
    "pipeline",
)


def job(directory, kind, switch):
    """Losses, gradients, random numbers and graphs of both ranks."""
    directory.mkdir()

    def environ(rank):
        caches = str(directory / f"inductor{rank}")
        threads = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": caches}
        return {"PERF_CALLBACKS": switch, **threads}

    imports = ("torch._inductor.compile_fx", "compiled_rank")
    with ranks("compiled_rank.py", directory, kind, imports=imports, directory=directory, environ=environ) as processes:
        status = [rank.wait(280) for rank in processes]
    assert status == [0, 0], said(directory)
    return [json.loads((directory / f"facts{rank}.json").read_text()) for rank in RANKS]


@pytest.mark.parametrize(
    "kind", [kind if kind == "tensor_blocks" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_ranks_of_a_compiled_model(tmp_path, kind):
    off, ours = job(tmp_path / "off", kind, "0"), job(tmp_path / "ours", kind, "")
    if kind == "pipeline":  # with our hook on a stage, the compiler makes one graph of what were two
        graphs = [[rank.pop()["unique_graphs"] for rank in ranks] for ranks in (off, ours)]
        assert all(count <= before for before, count in zip(*graphs, strict=True))
        assert ours == off
        return
    assert ours == off
    assert all(len(losses) == 20 and graphs["unique_graphs"] > 0 for losses, _, _, graphs in ours)
