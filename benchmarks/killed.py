"""What a killed run leaves: SIGKILL at random moments of its first seconds, and its journal beside what it did.

Each run notes every finished step in a file of its own, past every buffer. A journal has to tell of the run, of its
checklist, and of all steps but those that ended in the last five seconds. The summary so far may be ten seconds old.

    python benchmarks/killed.py
    python benchmarks/killed.py --moments 3 --within 8
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ALLOWED_SECONDS = 5.0
SUMMARY_SECONDS = 12.0
"""Age of a summary that is allowed: ten seconds, and two for a busy machine."""

FIRST_SECONDS = 4.0
"""Within these seconds of training there may be no summary yet."""

WAYS = {
    "loop, 50 ms": ("loop", 0.05),
    "loop, 2 s": ("loop", 2.0),
    "transformers, 50 ms": ("transformers", 0.05),
    "loop, 50 ms, each 19th 8 s": ("uneven", 0.05),
}


@dataclass
class Outcome:
    """One killed run."""

    way: str
    moment: float
    run: bool
    items: int
    steps: int
    old: int
    lost: list[int]
    """Older steps that the journal doesn't have."""
    lost_seconds: float
    """How long before the end the first step ended that the journal doesn't have."""
    summary_age: float | None
    """Seconds from the last summary so far to the kill; None: there is no summary."""

    @property
    def good(self) -> bool:
        from perf_callbacks.checklist import ITEMS

        recent = self.summary_age is not None and self.summary_age <= SUMMARY_SECONDS
        summarized = recent or (self.summary_age is None and self.moment < FIRST_SECONDS)
        return self.run and self.items == len(ITEMS) and not self.lost and summarized


def note(file: int, word: object) -> None:
    os.write(file, f"{word} {time.monotonic()}\n".encode())


def uneven(seconds: float, directory: str, file: int) -> None:
    """Most kills fall into a long step."""
    loop(seconds, directory, file, lambda number: 8.0 if number % 19 == 0 else seconds)


def loop(seconds: float, directory: str, file: int, length: Callable[[int], float] | None = None) -> None:
    import torch

    from perf_callbacks import PerfConfig
    from perf_callbacks.loop import measure

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = (torch.ones(2, 4) for _ in iter(int, 1))
    with measure(model=model, optimizer=optimizer, loader=batches, config=PerfConfig(output_dir=directory)) as perf:
        note(file, "begin")
        for number, batch in enumerate(perf.loader, 1):
            time.sleep(length(number) if length else seconds)
            model(batch).sum().backward()
            optimizer.step()
            note(file, number)
            optimizer.zero_grad()


def trainer(seconds: float, directory: str, file: int) -> None:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from perf_callbacks.transformers import PerfCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x):
            time.sleep(seconds)
            return {"loss": self.layer(x).sum()}

    class Noting(TrainerCallback):
        began = False

        def on_step_begin(self, *_, **__):
            if not self.began:
                note(file, "begin")
            self.began = True

        def on_step_end(self, _, state, *__, **___):
            note(file, state.global_step)

    rows = [{"x": torch.ones(4)}] * 1000
    arguments = TrainingArguments(
        output_dir=directory,
        max_steps=100_000,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=10,
    )
    Trainer(Model(), arguments, train_dataset=rows, callbacks=[PerfCallback(), Noting()]).train()


def child(way: str, seconds: float, directory: str) -> None:
    file = os.open(Path(directory) / "did.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    {"loop": loop, "transformers": trainer, "uneven": uneven}[way](seconds, directory, file)


def did(directory: Path) -> dict[str, float]:
    """What the run noted, with the time of each."""
    path = directory / "did.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return {word: float(at) for word, at in [line.split() for line in lines]}


def kill(way: str, moment: float) -> Outcome:
    """Start a run, and kill it so many seconds after it began to train."""
    kind, seconds = WAYS[way]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        command = [sys.executable, __file__, "--child", kind, str(seconds), name]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while "begin" not in did(directory):
                if process.poll() is not None:
                    raise RuntimeError(f"{way}: the run ended by itself, with status {process.returncode}")
                time.sleep(0.01)
            time.sleep(max(0.0, did(directory)["begin"] + moment - time.monotonic()))
        finally:
            killed, now = time.monotonic(), time.time()
            process.send_signal(signal.SIGKILL)
            process.wait()
        summary = directory / "perf_callbacks" / "summary0.json"
        age = now - summary.stat().st_mtime if summary.exists() else None
        return judged(way, moment, directory, killed, age)


def judged(way: str, moment: float, directory: Path, killed: float, age: float | None) -> Outcome:
    from perf_callbacks.journal import Checklist, Run, Steps, read

    finished = {int(word): at for word, at in did(directory).items() if word != "begin"}
    try:
        records = [entry.record for entry in read(directory)]
    except FileNotFoundError:
        records = []
    told = {step for block in records if isinstance(block, Steps) for step in block.step}
    old = [step for step, at in finished.items() if at < killed - ALLOWED_SECONDS]
    missing = [at for step, at in finished.items() if step not in told]
    return Outcome(
        way=way,
        moment=moment,
        run=bool(records) and isinstance(records[0], Run),
        items=len({record.item for record in records if isinstance(record, Checklist)}),
        steps=len(finished),
        old=len(old),
        lost=sorted(set(old) - told),
        lost_seconds=killed - min(missing, default=killed),
        summary_age=age,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=20, help="how many runs are killed")
    parser.add_argument("--within", type=float, default=30.0, help="seconds of training in which they are")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="*", default=[*WAYS], choices=WAYS, metavar="WAY", help="of training; all")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, seconds, directory = options.child
        child(way, float(seconds), directory)
        return 0
    chance = random.Random(options.seed)
    moments = [(way, chance.uniform(0, options.within)) for _ in range(options.moments) for way in options.ways]
    with ThreadPoolExecutor(options.at_once) as pool:
        outcomes = list(pool.map(lambda one: kill(*one), moments[: options.moments]))
    names = ["run", "killed after", "run", "items", "finished steps", "of them older than 5 s", "lost of these"]
    print("|", " | ".join([*names, "first lost", "summary"]), "|")
    print("|---" * (len(names) + 2) + "|")
    for one in outcomes:
        columns = [one.way, f"{one.moment:.2f} s", one.run, one.items, one.steps, one.old, len(one.lost)]
        age = "none" if one.summary_age is None else f"{one.summary_age:.1f} s old"
        print("|", " | ".join(map(str, columns)), f"| {one.lost_seconds:.2f} s before | {age} |")
    good = sum(one.good for one in outcomes)
    print(
        f"{good} of {len(outcomes)} journals tell of the run, the checklist and all steps but the last 5 seconds'. "
        f"The oldest summary was {max([one.summary_age or 0.0 for one in outcomes]):.1f} s old."
    )
    return 0 if good == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
