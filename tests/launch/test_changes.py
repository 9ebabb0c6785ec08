"""Each change of a trial is there in the steps of the program, and nothing is changed without a plan for it."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from launching import program_environ
from trial_kit import AT_ONCE, LOOP

from perf_callbacks.launch import run, tries
from perf_callbacks.trials import TRIAL
from perf_callbacks.trials.plan import Plan, write
from perf_callbacks.trials.remedies import settings

SEEN = """
import gc, json, os
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters())  # a generator
loader = DataLoader(Rows(), batch_size=4)
calls = 0

def layer(x):
    global calls
    calls += 1
    return net[0](x)

for step, x in enumerate(loader):
    calls = 0
    net[1](checkpoint(layer, x, use_reentrant=False) + net(x)[:, :1]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 12:
        print("SEEN" + json.dumps({
            "workers": loader.num_workers, "prefetch": loader.prefetch_factor, "persistence": loader.persistent_workers,
            "optimizer": bool(optimizer.param_groups[0]["fused"]), "precision": torch.get_float32_matmul_precision(),
            "threads": torch.get_num_threads(), "gc": os.environ["PERF_CALLBACKS_GC"], "calls": calls,
            "compile": net._compiled_call_impl is not None,
        }), flush=True)
"""

TRAINER = """
import json
from trainings import models
from transformers import TrainerCallback

class Seen(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step == 12:
            print("SEEN" + json.dumps({
                "logging": args.logging_steps, "nan_filter": args.logging_nan_inf_filter,
                "attention": model.config._attn_implementation, "rebalance": args.train_sampling_strategy,
                "checkpointing": any(getattr(m, "gradient_checkpointing", False) for m in model.modules()),
            }), flush=True)

arguments = models.training_arguments("out", max_steps=10**5, per_device_train_batch_size=2, logging_steps=1)
rows = [models.Tokens()[row] for row in range(22)]  # the trainer reads all lengths, up to an IndexError
models.trainer(arguments, Seen(), model=models.llama(attn_implementation="eager"), train_dataset=rows).train()
"""


@pytest.fixture
def seen(tmp_path):
    """Runs a trial with changes, and returns its outcome and what the program saw."""

    def trial(source, *changes, **environ):
        (tmp_path / "train.py").write_text(source)
        own = Path(tempfile.mkdtemp(prefix="t"))  # the path of a socket can't be long
        path = tmp_path / f"{len([*tmp_path.glob('*.plan')])}.plan"
        write(path, Plan(scratch=str(own), changes=dict(changes), steps=5, seconds=0.0))
        environ = {
            **run.environment(program_environ(), reports=False),
            **tries.QUIET,
            "PERF_CALLBACKS_FLOPS": "off",
            "PERF_CALLBACKS_OUTPUT_DIR": str(own),
            "TMPDIR": str(own),
            **settings(dict(changes), own_callback=False),
            TRIAL: str(path),
            **environ,
        }
        outcome = tries.launched([sys.executable, str(tmp_path / "train.py")], path, environ, 120.0, bool)
        shutil.rmtree(own)
        output = path.with_suffix(".out").read_text()
        found = [line.removeprefix("SEEN") for line in output.splitlines() if line.startswith("SEEN")]
        assert found, (outcome, output)
        return outcome, json.loads(found[0])

    return trial


BARE = {
    "workers": 0, "prefetch": None, "persistence": False, "optimizer": False, "precision": "highest", "threads": 1,
    "gc": "observe", "calls": 2, "compile": False,
}  # fmt: skip


@pytest.mark.slow
def test_all_changes_of_a_plain_loop_are_there(seen):
    names = [("workers", 1), ("prefetch", 4), ("persistence", None), ("optimizer", None), ("precision", None)]
    names += [("threads", 2), ("gc", None), ("checkpointing", None), ("compile", None), ("attention", None)]
    outcome, found = seen(AT_ONCE + LOOP + SEEN, *names, TORCHDYNAMO_DISABLE="1")
    assert found == {
        "workers": 1, "prefetch": 4, "persistence": True, "optimizer": True, "precision": "high", "threads": 2,
        "gc": "sync", "calls": 1, "compile": True,
    }  # fmt: skip
    assert {*outcome.applied} == {name for name, _ in names} - {"attention"}  # it has none


@pytest.mark.slow
def test_without_changes_a_plain_loop_is_as_it_is(seen):
    outcome, found = seen(AT_ONCE + LOOP + SEEN)
    assert found == BARE
    assert outcome.applied == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "value", "expected"),
    [("workers", 2, 2), ("optimizer", None, True), ("threads", 2, 2), ("precision", None, "high")],
)
def test_one_change_changes_one_thing(seen, change, value, expected):
    outcome, found = seen(AT_ONCE + LOOP + SEEN, (change, value))
    assert found == BARE | {change: expected} | ({"prefetch": 2} if change == "workers" else {})
    assert outcome.applied == (change,)


@pytest.mark.slow
def test_all_changes_of_a_transformers_trainer_are_there(seen):
    names = [("logging", 7), ("nan_filter", None), ("attention", None), ("rebalance", None)]
    outcome, found = seen(AT_ONCE + TRAINER, *names)
    assert found == {
        "logging": 7, "nan_filter": False, "attention": "sdpa", "rebalance": "batch_rebalance", "checkpointing": False,
    }  # fmt: skip
    assert {*outcome.applied} == {name for name, _ in names}


@pytest.mark.slow
def test_a_change_of_what_is_so_already_is_not_applied(seen):
    source = SEEN.replace("batch_size=4", "batch_size=4, num_workers=1").replace(
        "parameters())", "parameters(), fused=True)"
    )
    outcome, _ = seen(AT_ONCE + LOOP + source, ("workers", 1), ("optimizer", None))
    assert outcome.applied == ()


def test_a_program_without_an_end_is_killed(tmp_path):
    path = tmp_path / "1.plan"
    outcome = tries.launched(
        [sys.executable, "-c", "while True: pass"], path, {**os.environ, TRIAL: str(path)}, 0.2, bool
    )
    assert outcome.place == "no end after 0 s"
