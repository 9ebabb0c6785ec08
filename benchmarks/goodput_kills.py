"""Is the time of a killed job right? Real trainings, killed at random moments and resumed, beside their own log.

Each training is killed by SIGKILL at random moments and resumed from its last checkpoint, once from an older one. The
training logs each step, and each checkpoint, with its own clock; this script knows when it started and killed each
process. From these come the truth: steps that survive, steps that were rolled back, downtime, startup, and the
effective training time ratio. `perf-callbacks goodput DIR --json` reads the journals alone.

    python benchmarks/goodput_kills.py
    python benchmarks/goodput_kills.py --ways accelerate --down 5 --seed 3

A step counts from the end of the step or checkpoint before; the first two steps of an attempt, with set-up and FLOP
count, count at most as long as the median step. A part of a step that was killed is in no journal: the command counts
it as downtime. The truth counts the downtime from the moment of the kill, and differs by up to a step per kill.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

ALLOWED = 0.01


@dataclass
class Attempt:
    """What the script and the training itself know of an attempt."""

    started: float
    ended: float
    begun: float | None = None
    first: int = 0
    steps: dict[int, float] = field(default_factory=dict)
    """Seconds by number of a step."""


class Log:
    """The training's own log, past every buffer."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event, number=0):
        os.write(self.file, f"{json.dumps([event, number, time.monotonic()])}\n".encode())


def net(seconds):
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, **_):
            time.sleep(seconds)
            return {"loss": self.layer(x).square().mean()}

    return Net()


def rows():
    import torch

    return [{"x": torch.ones(4)}] * 4000


def transformers(plan, log):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    class Logging(TrainerCallback):
        def on_train_begin(self, _, state, *__, **___):
            log.write("begin", state.global_step)

        def on_step_end(self, _, state, *__, **___):
            log.write("step", state.global_step)

    class Saving(Trainer):
        def _save_checkpoint(self, *words, **named):
            log.write("saves", self.state.global_step)
            super()._save_checkpoint(*words, **named)
            log.write("saved", self.state.global_step)

    arguments = TrainingArguments(
        output_dir=plan["directory"], max_steps=plan["steps"], per_device_train_batch_size=2, use_cpu=True,
        report_to="none", disable_tqdm=True, save_strategy="steps", save_steps=plan["every"], logging_steps=5,
    )  # fmt: skip
    trainer = Saving(net(plan["seconds"]), arguments, train_dataset=rows(), callbacks=[PerfCallback(), Logging()])
    resume = f"{plan['directory']}/checkpoint-{plan['resume']}" if plan["resume"] else None
    trainer.train(resume_from_checkpoint=resume)


def lightning(plan, log):
    import torch
    from lightning import pytorch as pl
    from torch.utils.data import DataLoader

    from perf_callbacks.lightning import PerfCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net(plan["seconds"])

        def training_step(self, batch, _):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Logging(pl.Callback):
        def on_train_start(self, trainer, _):
            log.write("begin", trainer.global_step)

        def on_train_batch_end(self, trainer, *_):
            log.write("step", trainer.global_step)

    class Saving(pl.callbacks.ModelCheckpoint):
        def _save_checkpoint(self, trainer, path):
            log.write("saves", trainer.global_step)
            super()._save_checkpoint(trainer, path)
            log.write("saved", trainer.global_step)

    folder = Path(plan["directory"]) / "saved"
    save = Saving(dirpath=folder, every_n_train_steps=plan["every"], save_top_k=-1, filename="{step}")
    trainer = pl.Trainer(
        default_root_dir=plan["directory"], max_steps=plan["steps"], accelerator="cpu", devices=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[PerfCallback(), Logging(), save],
    )  # fmt: skip
    resume = str(folder / f"step={plan['resume']}.ckpt") if plan["resume"] else None
    trainer.fit(Module(), DataLoader(rows(), batch_size=2), ckpt_path=resume)


def accelerate(plan, log):
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    from perf_callbacks.accelerate import attach

    accelerator = Accelerator(cpu=True, project_dir=plan["directory"])
    attach(accelerator)
    model = net(plan["seconds"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=2))
    if plan["resume"]:
        accelerator.load_state(f"{plan['directory']}/checkpoint-{plan['resume']}")
    log.write("begin", plan["resume"])
    for step, batch in enumerate(loader, plan["resume"] + 1):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        log.write("step", step)
        optimizer.zero_grad()
        if step % plan["every"] == 0:
            log.write("saves", step)
            accelerator.save_state(f"{plan['directory']}/checkpoint-{step}")
            log.write("saved", step)
        if step == plan["steps"]:
            break
    accelerator.end_training()


WAYS = {"transformers": transformers, "lightning": lightning, "accelerate": accelerate}


def child(way, path):
    """Train as the plan says. The plan is in a file, because the command must be the same in each attempt."""
    import warnings

    warnings.simplefilter("ignore")
    plan = json.loads(Path(path).read_text(encoding="utf-8"))
    log = Log(plan["log"])
    WAYS[way](plan, log)
    log.write("done")


def logged(path):
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def attempt_of(log, started, ended):
    """What an attempt did, from its log."""
    found, mark = Attempt(started, ended), None
    for event, number, moment in log:
        if event == "begin":
            found.begun, found.first = moment, number
        elif event == "step" and mark is not None:
            found.steps[number] = moment - mark
        elif event == "done":
            found.ended = moment
        mark = moment if event in {"begin", "step", "saved"} else mark
    return found


def checkpoints(log):
    return [number for event, number, _ in log if event == "saved"]


def train(way, directory, options):
    """Run, kill and resume a training until it ends. Return the attempts as they were, in order."""
    chance = random.Random(f"{options.seed} {way}")
    saved: set[int] = set()
    attempts, resume = [], 0
    older = chance.randrange(1, options.kills + 1)  # after this kill, an older checkpoint
    for number in range(1, options.kills + 2):
        log_path, plan_path = directory / f"log{number}.jsonl", directory / "plan.json"
        plan = {
            "directory": str(directory / "out"), "log": str(log_path), "seconds": options.step, "resume": resume,
            "steps": options.steps, "every": options.every,
        }  # fmt: skip
        plan_path.write_text(json.dumps(plan), encoding="utf-8")
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SLURM_JOB_ID": f"kills-{way}"}
        command = [sys.executable, __file__, "--child", way, str(plan_path)]
        with (directory / f"output{number}.txt").open("wb") as output:
            started = time.monotonic()
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT)
            last = number > options.kills
            life = chance.uniform(0.3, 1.0) * options.life
            while process.poll() is None:
                begun = [moment for event, _, moment in logged(log_path) if event == "begin"]
                if not last and begun and time.monotonic() >= begun[0] + life:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                time.sleep(0.01)
            ended = time.monotonic()
        if process.returncode not in {0, -signal.SIGKILL}:
            raise RuntimeError((directory / f"output{number}.txt").read_text(encoding="utf-8")[-3000:])
        log = logged(log_path)
        attempts.append(attempt_of(log, started, ended))
        if last:
            break
        saved = {step for step in saved if step <= resume} | {*checkpoints(log)}
        known = sorted(saved)
        resume = known[-2 if number == older and len(known) > 1 else -1] if known else 0
        time.sleep(chance.uniform(0.8, 1.2) * options.down)
    return attempts


def truth(attempts):
    """Compute the figures from the log of the script and of the training."""
    lost, productive, limit = 0, 0.0, sys.maxsize
    for one in reversed(attempts):
        usual = median(one.steps.values()) if one.steps else 0.0
        special = [*one.steps][:2]
        for step, seconds in one.steps.items():
            if step > limit:
                lost += 1
            else:
                productive += min(seconds, usual) if step in special else seconds
        limit = min(limit, one.first)
    pairs = pairwise(attempts)
    return {
        "ettr": productive / (attempts[-1].ended - attempts[0].started),
        "rolled_back_steps": lost,
        "downtime": sum(after.started - before.ended for before, after in pairs),
        "startup": sum(one.begun - one.started for one in attempts if one.begun is not None),
    }


def measured(directory):
    """Ask the command."""
    command = [sys.executable, "-m", "perf_callbacks", "goodput", str(directory / "out"), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    picked = {name: found["seconds"][name] for name in ("downtime", "startup")}
    return {"ettr": found["ettr"], "rolled_back_steps": found["rolled_back_steps"], **picked}, found["attempts"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="*", default=[*WAYS], choices=WAYS)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--step", type=float, default=1.05, help="seconds of a step")
    parser.add_argument("--life", type=float, default=20.0, help="longest time of training before a kill")
    parser.add_argument("--down", type=float, default=100.0, help="mean seconds between a kill and the next start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    good = True
    print("| way | attempts | figure | truth | goodput | difference |\n|---|---|---|---|---|---|")
    for way in options.ways:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            were = train(way, directory, options)
            expected = truth(were)
            found, shown = measured(directory)
        attempts = len(shown)
        for one, other in zip(were, shown, strict=False):
            done = f"steps {one.first + 1} to {max(one.steps, default=one.first)}, {len(one.steps)}"
            print(f"{way}: {done}; in the journal from {other['from_step']}, {other['steps']}", file=sys.stderr)
        for figure, right in expected.items():
            off = found[figure] - right
            share = abs(off) / right if right else abs(off)
            judged = "" if figure == "startup" else " ✓" if share <= ALLOWED else " ✗"
            good = good and not judged.endswith("✗")
            values = f"{right:.4g} | {found[figure]:.4g} | {off:+.3g} ({share:.2%})"
            print(f"| {way} | {attempts} | {figure} | {values}{judged} |")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
