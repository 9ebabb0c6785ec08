"""Does the first sentence name a hidden fault? Real runs, each slowed down in one of 16 ways, and healthy runs.

    OMP_NUM_THREADS=1 python benchmarks/hidden_faults.py                # 32 runs with one fault each
    OMP_NUM_THREADS=1 python benchmarks/hidden_faults.py --load 4      # the same beside 4 busy processes
    OMP_NUM_THREADS=1 python benchmarks/hidden_faults.py --healthy     # 15 runs without a fault

A seed draws the kinds of faults and the integrations, each kind twice. Each run is a process of its own. A first
sentence is right if its finding has the cause of the fault, and names the function if the fault has one. Beside busy
processes, the sentence "no CPU" is right if the next finding is the fault. A healthy run is right if its first sentence
advises nothing; beside busy processes, it may say "no CPU".
"""

import argparse
import json
import random
import subprocess
import sys
import time

import verdicts

KINDS = {
    "data": ("data", ""),
    "restarts": ("data", "workers are started"),
    "callback": ("host", "spin"),
    "loss": ("host", "slow_loss"),
    "clipping": ("host", "slow_clip"),
    "logging": ("sync", ""),
    "recompute": ("recompute", ""),
    "padding": ("padding", ""),
    "attention": ("attention", ""),
    "optimizer": ("optimizer", ""),
    "gc": ("gc", ""),
    "evaluation": ("evaluation", ""),
    "checkpoint": ("checkpoint", ""),
    "drift": ("drift", ""),
    "compile": ("compile", ""),
    "threads": ("threads|cpu", "threads"),
}
"""By kind of fault: the causes of a right finding, separated by bars, and a text that its evidence holds."""

DOORS = tuple(verdicts.TRAIN)
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"


def slow_loss(seconds):
    """Weigh tokens in a Python loop."""
    total, until = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for number in range(100):
            total += number**0.5
    return 0 * total


def slow_clip(seconds):
    """Look at gradients in Python."""
    total, until = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for number in range(100):
            total += number**0.5
    return total


class LateRows:
    """A short data set that opens its file with the first sample, in each worker anew."""

    def __init__(self, rows):
        self.rows, self.opened = rows, False

    def __len__(self):
        return 8 * verdicts.BATCH

    def __getitem__(self, index):
        if not self.opened:
            self.opened = True
            time.sleep(0.15)
        return self.rows[index]


class PaddedRows:
    """Rows of different lengths, all padded to the longest."""

    def __init__(self, rows):
        self.rows = rows
        draw = random.Random(rows.seed)
        self.lengths = [draw.randint(verdicts.LENGTH // 8, verdicts.LENGTH) for _ in range(len(rows))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        import torch

        row = self.rows[index]
        mask = (torch.arange(verdicts.LENGTH) < self.lengths[index]).long()
        return {**row, "attention_mask": mask, "labels": row["labels"].masked_fill(mask == 0, -100)}


class Run(verdicts.Run):
    """A training with a fault of the kinds above."""

    def __init__(self, kind, seed, folder, **options):
        known = {"callback": "host", "logging": "sync"}.get(kind, kind)
        if kind == "restarts":
            options["workers"] = 1
        super().__init__(known if known in verdicts.CAUSES else "", seed, folder, **options)
        import torch

        self.kind = kind
        self.grown, self.number = [], 0
        if kind == "attention":
            self.model.set_attn_implementation("eager")
        if kind == "loss":
            self.model.register_forward_hook(self._slow_loss)
        if kind == "clipping":
            self.optimizer.register_step_pre_hook(self._slow_clip)
        if kind == "restarts":
            self.rows = LateRows(self.rows)
        if kind == "padding":
            self.rows = PaddedRows(self.rows)
        if kind == "compile":
            torch._dynamo.config.recompile_limit = 10_000  # noqa: SLF001 the documented setting
            self.model.model.layers[0].mlp.compile(dynamic=False, backend="aot_eager")
            self.model.register_forward_pre_hook(self._cut, with_kwargs=True)
        if kind == "threads":
            torch.set_num_threads(16)

    @staticmethod
    def _slow_clip(*_):
        slow_clip(verdicts.WORK_SECONDS)

    @staticmethod
    def _slow_loss(_model, _args, out):
        out.loss = out.loss + slow_loss(verdicts.WORK_SECONDS)

    def after_step(self, loss):
        super().after_step(loss)
        self.number += 1
        if self.kind == "drift":
            self.grown += [float(self.number)] * 1500
            sum(self.grown)

    def _cut(self, _model, args, kwargs):
        """Cut a batch to one of 60 lengths."""
        length = 4 + self.number % 60
        return args, {name: tensor[:, :length] for name, tensor in kwargs.items()}


def save_often():
    """Make Hugging Face trainers save every 3 steps."""
    from transformers import TrainingArguments

    check = TrainingArguments.__post_init__

    def checked(self):
        self.save_strategy, self.save_steps, self.save_total_limit = "steps", 3, 1
        check(self)

    TrainingArguments.__post_init__ = checked


def one(kind, door, seed, workers):
    """Train in this process, and print the findings."""
    import torch

    verdicts.Run = Run
    steps, verdicts.STEPS = verdicts.STEPS, 20
    if kind == "checkpoint":
        save_often()
    verdicts.prepare((door,))
    verdicts.STEPS = steps * (1 + (kind == "compile"))  # whose batches are short
    if not kind:
        verdicts.STEPS = steps * 3 // 2  # more than ten seconds on any machine like this one
    if kind == "attention":
        verdicts.LENGTH, verdicts.STEPS = 256, 200
    summary, card = verdicts.train(door, kind, seed, workers=workers)
    findings = [(found.cause, found.share, found.low, found.evidence) for found in summary.findings]
    first = card.partition("perf_callbacks: ")[2].partition(f"{verdicts.STEPS:,} steps")[0]
    print(json.dumps({"findings": findings, "sentence": " ".join(first.split()), "torch": torch.__version__}))


def run(kind, door, seed, workers=0):
    """Train in a process of its own; return the findings and the sentence."""
    arguments = [sys.executable, __file__, "--one", kind, door, str(seed), str(workers)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"findings": [], "sentence": "failed: " + " ".join(done.stderr.split()[-30:])}


def right(kind, found, loaded):
    """Return True if the first sentence names the fault."""
    said = found["sentence"]
    if said.startswith(("Nothing to win", "Little to win", "No single cause")):
        return False
    findings = found["findings"]
    causes, text = KINDS[kind]
    if loaded and findings and findings[0][0] == "cpu":
        findings = findings[1:]
    return bool(findings) and findings[0][0] in causes.split("|") and text in findings[0][3]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", nargs=4)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS])
    parser.add_argument("--skip", type=int, default=0, help="runs to leave out at the start")
    parser.add_argument("--seed", type=int, default=20261125)
    arguments = parser.parse_args()
    if arguments.one:
        kind, door, seed, workers = arguments.one
        one(kind, door, int(seed), int(workers))
        return
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(arguments.load)]
    try:
        if arguments.healthy:
            healthy(arguments)
        else:
            faults(arguments)
    finally:
        for burner in burners:
            burner.kill()


def faults(arguments):
    draw = random.Random(arguments.seed)
    kinds = [*arguments.kinds, *arguments.kinds]
    draw.shuffle(kinds)
    total = 0
    print("| fault | integration | right | findings | first sentence |\n" + 5 * "|---" + "|")
    for number, kind in enumerate(kinds):
        door = draw.choice(doors_of(kind))
        if number < arguments.skip:
            continue
        found = run(kind, door, arguments.seed + number)
        good = right(kind, found, arguments.load)
        total += good
        causes = ", ".join([f"{cause} {share or 0:.0%}" for cause, share, *_ in found["findings"][:3]])
        print(f"| {kind} | {door} | {'yes' if good else '**no**'} | {causes} | {found['sentence'][:200]} |", flush=True)
    print(f"\n{total} of {len(kinds) - arguments.skip} first sentences are right.")


def doors_of(kind):
    """Return the integrations in which a fault is what it says."""
    if kind in {"restarts", "checkpoint"}:
        return ("transformers",)
    if kind in {"compile", "drift", "padding"}:  # what `after_step` does; the trainer mixes the rows
        return ("loop", "accelerate", "lightning")
    return DOORS


def healthy(arguments):
    draw = random.Random(arguments.seed)
    silent = 0
    for number in range(15):
        door = DOORS[number % len(DOORS)]
        found = run("", door, arguments.seed + number, workers=draw.randrange(2))
        said = found["sentence"]
        good = said.startswith(("Nothing to win", "Little to win", "No single cause"))
        good = good or (arguments.load > 0 and "had no CPU" in said)
        silent += good
        print(f"| {door} | {'yes' if good else '**no**'} | {said[:160]} |", flush=True)
    print(f"\n{silent} of 15 healthy runs have no false first sentence.")


if __name__ == "__main__":
    sys.exit(main())
