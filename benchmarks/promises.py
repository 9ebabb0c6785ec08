"""Does following a finding gain what it promises? Runs with one fault, in turns without and with the remedy.

    OMP_NUM_THREADS=1 python benchmarks/promises.py                        # six programs for each kind of fault
    OMP_NUM_THREADS=1 python benchmarks/promises.py --kinds data optimizer

The faults are those of `hidden_faults.py`, with batches of other lengths. The remedy is applied as its line says. Each
program is a process of its own, which trains three times without and twice with the remedy. The promise is the range of
the finding in the first training. The gain is the part of the time after startup that the fastest training with the
remedy saves against the fastest one without; in parentheses the least and most gain of any two trainings. If these
differ much, the machine changed its speed.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile

import hidden_faults
import verdicts

KINDS = (
    "data", "restarts", "callback", "loss", "clipping", "logging", "recompute", "padding", "attention", "optimizer",
    "gc", "evaluation", "checkpoint", "compile",
)  # fmt: skip
"""Kinds of faults whose findings promise something that can be followed literally."""

PROGRAMS = 6

EVERY = 50
"""Steps between two calls of slow code, as the finding says."""


class SortedRows(hidden_faults.PaddedRows):
    """The same rows in the order of their lengths, each as long as the longest of its batch."""

    def __init__(self, padded):
        super().__init__(padded.rows)
        self.order = sorted(range(len(self)), key=self.lengths.__getitem__)

    def __getitem__(self, index):
        batch = self.order[index - index % verdicts.BATCH :][: verdicts.BATCH]
        longest = max(self.lengths[one] for one in batch)
        return {name: tensor[:longest] for name, tensor in super().__getitem__(self.order[index]).items()}


class Followed(hidden_faults.Run):
    """A training with a fault, after the remedy."""

    door = remedy = ""

    def __init__(self, kind, seed, folder, **options):
        if kind == "data":
            options["workers"] = self.number_in("num_workers")
        super().__init__(kind, seed, folder, **options)
        if kind == "recompute":
            self.cause = ""
            self.model.gradient_checkpointing_disable()
        if kind == "padding":
            self.rows = SortedRows(self.rows)
        if kind == "attention":
            self.model.set_attn_implementation("sdpa")
        if kind == "optimizer":
            import torch

            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        if kind == "evaluation":
            self.evaluated_every = int(re.search(r"(\d+)", self.remedy)[1])
        if kind == "compile":
            self.model.model.layers[0].mlp.compile(dynamic=True, backend="aot_eager")
        self.calls = 0

    def number_in(self, name):
        return int(re.search(rf"{name}=(\d+)", self.remedy)[1])

    def now(self):
        """Return True in each 50th call."""
        self.calls += 1
        return self.calls % EVERY == 0

    def after_step(self, loss):
        if self.kind == "gc":
            self.make_cycles()
        elif self.kind == "logging" and self.door == "transformers":
            super().after_step(loss)  # called for each line of the log
        elif self.kind not in {"callback", "logging"} or self.now():
            super().after_step(loss)

    @staticmethod
    def make_cycles():
        for _ in range(1000):
            cycle = []
            cycle.append(cycle)

    def _slow_clip(self, *args):
        if self.now():
            super()._slow_clip(*args)

    def _slow_loss(self, *args):
        if self.now():
            super()._slow_loss(*args)


def change_arguments(kind):
    """Change what Hugging Face trainers are given, by the fault and by the remedy of the turn."""
    from transformers import TrainingArguments

    check = TrainingArguments.__post_init__

    def checked(self):
        remedy = verdicts.Run.remedy
        if kind == "checkpoint":
            found = re.search(r"save_steps=(\d+)", remedy)
            self.save_strategy, self.save_total_limit, self.save_steps = "steps", 1, int(found[1]) if found else 3
        if kind == "restarts":
            self.dataloader_persistent_workers = bool(remedy)
        if kind == "logging" and remedy:
            self.logging_steps = EVERY
        check(self)

    TrainingArguments.__post_init__ = checked


def turn(kind, door, seed, remedy=""):
    """Train once. Return the time after startup, and the findings."""
    verdicts.Run = Followed if remedy else hidden_faults.Run
    verdicts.Run.door, verdicts.Run.remedy = door, remedy
    summary, _ = verdicts.train(door, kind, seed)
    wall = summary.wall_seconds
    return sum(wall.values()) - wall.get("startup", 0.0), summary.findings


def one(kind, door, seed, length):
    """Train without and with the remedy, in turns. Print the promise and the gain; nothing without a promise."""
    steps, verdicts.STEPS = verdicts.STEPS, 20
    verdicts.Run = hidden_faults.Run
    verdicts.Run.remedy = ""
    change_arguments(kind)
    verdicts.prepare((door,))
    verdicts.STEPS, verdicts.LENGTH = steps, length
    if kind == "compile":
        verdicts.STEPS = 2 * steps
    if kind == "attention":
        verdicts.LENGTH, verdicts.STEPS = 2 * length + 128, 240
    before, findings = turn(kind, door, seed)
    causes, text = hidden_faults.KINDS[kind]
    found = [one for one in findings if one.cause in causes.split("|") and text in one.evidence and one.share]
    if found:
        slow, followed = [before], []
        for _ in range(2):
            followed.append(turn(kind, door, seed, found[0].remedy)[0])
            slow.append(turn(kind, door, seed)[0])
        gains = [1 - after / one for after in followed for one in slow]
        gain = 1 - min(followed) / min(slow)
        print(json.dumps([found[0].low or 0.0, found[0].share, [gain, min(gains), max(gains)], found[0].remedy]))
    else:
        print("null")


def measured(steps, *program):
    """Measure a program in a process of its own."""
    arguments = [sys.executable, __file__, "--steps", str(steps), "--one", *map(str, program)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=folder)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise SystemExit(done.stderr[-2000:]) from None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", nargs=4)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS])
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--steps", type=int, default=verdicts.STEPS, help="of a turn; a verdict takes ten seconds")
    arguments = parser.parse_args()
    verdicts.STEPS = arguments.steps
    if arguments.one:
        kind, door, seed, length = arguments.one
        one(kind, door, int(seed), int(length))
        return
    totals = {}
    print("| fault | integration | length | promised | gained | within | line |\n" + 7 * "|---" + "|")
    for kind in arguments.kinds:
        draw = random.Random(f"{kind} {arguments.seed}")
        for number in range(arguments.programs):
            doors = hidden_faults.doors_of(kind)
            door, length = doors[number % len(doors)], draw.choice((48, 64, 96))
            found = measured(arguments.steps, kind, door, arguments.seed + number, length)
            if found is None:
                print(f"| {kind} | {door} | {length} | nothing | | | |", flush=True)
                continue
            low, share, (gain, least, most), remedy = found
            within = low <= gain <= share
            totals.setdefault(kind, []).append(within)
            gained = f"{gain:.1%} ({least:.1%}, {most:.1%})"
            told = f"{low:.1%} to {share:.1%} | {gained} | {'yes' if within else '**no**'}"
            print(f"| {kind} | {door} | {length} | {told} | {remedy} |", flush=True)
    for kind, within in totals.items():
        print(f"{kind}: {sum(within)} of {len(within)} gains within the promise")
    every = [one for within in totals.values() for one in within]
    print(f"all: {sum(every)} of {len(every)}")


if __name__ == "__main__":
    main()
