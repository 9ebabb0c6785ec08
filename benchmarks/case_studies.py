"""Six training programs of other people: what the verdict says, and what its remedy gains.

    python benchmarks/case_studies.py                           # clones into out/others; 40 minutes on two cores
    python benchmarks/case_studies.py --only reward --rounds 1

Each program runs as it is, and then with the remedy that its verdict names, in turns, each for the same time. A step
counts with all that happens between two steps, such as evaluations and starts of loader workers; the first step, the
startup and FLOP counts don't count. The table of the first run is printed, the time per step of all runs, and the path
of a report that lays the two kinds of runs over each other.

The programs need transformers, trl, evaluate, lightning and pytorch-forecasting. Their models are tiny and random,
and so is the data, which is made here.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import others
from others import NANOGPT_AT, PERF, TRL_AT, Program

TRL = "--per_device_train_batch_size 8 --bf16 False --eos_token '</s>' --report_to none --max_steps 2000"
SMALL = "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --dropout=0.0"
LEFT_OUT = {"startup", "first_step", "flop_counting", "own_work"}


@dataclass
class Case:
    """A program, and the remedy that its verdict names: options, variables, and lines to change in the script.

    Without a remedy, all that `perf-callbacks try` knows is tried.
    """

    program: Program
    options: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    measured: Callable[[str], str] = lambda text: text
    """Adds the callback to a script that `perf-callbacks run` can't measure."""
    seconds: float = 45
    """Duration of a run."""


def in_loop(text):
    """Measure nanoGPT's loop: one line, and the loop is indented."""
    before, loop = text.split("\nwhile True:\n")
    loop, after = loop.split("\nif ddp:\n    destroy_process_group()")
    measured = "from perf_callbacks.loop import measure\nwith measure(model=model, optimizer=optimizer):\n"
    loop = textwrap.indent(f"while True:\n{loop}", "    ")
    return f"{before}\n{measured}{loop}\nif ddp:\n    destroy_process_group(){after}"


CASES = {
    "reward": Case(
        Program(
            *TRL_AT,
            f"trl/scripts/reward.py --model_name_or_path tiny --dataset_name pairs {TRL} --output_dir out/reward",
        ),
        "--gradient_checkpointing False",
    ),
    "classification": Case(
        others.PROGRAMS["classification"],
        "--pad_to_max_length False --train_sampling_strategy group_by_length",
    ),
    "nanoGPT": Case(
        Program(*NANOGPT_AT, f"train.py config/train_shakespeare_char.py --device=cpu --compile=False {SMALL}"),
        "--eval_interval=3000",
        measured=in_loop,
        seconds=120,  # the first step evaluates in any case
    ),
    "nbeats": Case(
        others.PROGRAMS["nbeats"],
        variables={"OMP_NUM_THREADS": "1"},
        lines={
            "batch_size=batch_size, num_workers=2": "batch_size=batch_size, num_workers=2, persistent_workers=True",
        },
    ),
    "transformer": Case(others.PROGRAMS["lightning"]),
    "two ranks": Case(
        Program(
            *TRL_AT,
            "torchrun --nproc-per-node 2 trl/scripts/sft.py --model_name_or_path tiny --dataset_name texts "
            f"{TRL} --use_cpu True --output_dir out/sft",
        ),
        "--gradient_checkpointing False --train_sampling_strategy group_by_length",
    ),
}


def script_of(program):
    """Return the script in the program's command."""
    return next(word for word in program.command.split() if word.endswith(".py"))


def variant(case, folder, name, change):
    """Write a changed copy of the script beside it, and return the command that runs the copy."""
    script = script_of(case.program)
    text = (folder / script).read_text(encoding="utf-8")
    changed = change(text)
    if changed == text:
        return case.program.command
    copy = Path(script).with_stem(f"{Path(script).stem}_{name}")
    (folder / copy).write_text(changed, encoding="utf-8")
    return case.program.command.replace(script, str(copy))


def with_lines(lines, text):
    """Return the script with the lines of the remedy."""
    for old, new in lines.items():
        if old not in text:
            raise SystemExit(f"the script has no line {old!r}")
        text = text.replace(old, new)
    return text


def shown(out):
    """Return what `perf-callbacks show` knows of a run."""
    done = subprocess.run([*PERF, "show", out, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def per_step(found):
    """Return the seconds per step, with all that happens between steps."""
    summary = found["summary"]
    seconds = sum(part for name, part in summary["wall_seconds"].items() if name not in LEFT_OUT)
    return seconds / (summary["steps"] - 1)


def study(name, case, arguments, home):
    """Run a program in turns, without and with the remedy. Print the table, the times and the report."""
    folder = others.clone(case.program, home)
    remedied = partial(with_lines, case.lines)
    before = variant(case, folder, "measured", case.measured)
    after = f"{variant(case, folder, 'remedy', lambda text: remedied(case.measured(text)))} {case.options}".strip()
    results = home / "case-studies" / name.replace(" ", "-")
    if before == after and not case.variables:
        out = Path(tempfile.mkdtemp(prefix="as-it-is-", dir=_made(results)))
        others.measured(before, folder, out, arguments.seconds or case.seconds)
        print(f"\n## {name}\n\n$ perf-callbacks run {before}\n", flush=True)
        subprocess.run([*PERF, "show", out], check=True)
        limits = argparse.Namespace(steps=30, seconds=5, rounds=arguments.rounds)
        print(f"\n{others.TITLE}\n{others.row(name, others.tried(case.program, folder, limits))}", flush=True)
        return
    times = {"before": [], "after": []}
    for turn in range(arguments.rounds):
        for side, command, variables in ("before", before, {}), ("after", after, case.variables):
            out = Path(tempfile.mkdtemp(prefix=f"{side}-{turn}-", dir=_made(results)))
            others.measured(command, folder, out, arguments.seconds or case.seconds, **variables)
            times[side].append((per_step(shown(out)), out))
    first, second = times["before"][0][1], times["after"][0][1]
    print(f"\n## {name}\n\n$ perf-callbacks run {before}\n", flush=True)
    subprocess.run([*PERF, "show", first], check=True)
    set_before = "".join([f"{variable}={value} " for variable, value in case.variables.items()])
    print(f"\n$ {set_before}perf-callbacks run {after}\n")
    for old, new in case.lines.items():
        print(f"- {old}\n+ {new}")
    print("\n| round | as it is | with the remedy | faster |\n|---|---|---|---|")
    for turn, ((old, _), (new, _)) in enumerate(zip(times["before"], times["after"], strict=True), 1):
        print(f"| {turn} | {old * 1e3:.0f} ms | {new * 1e3:.0f} ms | {old / new:.2f}x |")
    page = results / "report.html"
    subprocess.run([*PERF, "report", first, "--with", second, "-o", page], check=True)
    print(f"\nAfter it: {shown(second)['verdict']}", flush=True)


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[*CASES], help="names of programs")
    parser.add_argument("--home", type=Path, default=Path("out/others"), help="directory of clones and results")
    parser.add_argument("--seconds", type=float, help="duration of a run")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    home = _made(arguments.home.absolute())
    for name in arguments.only:
        study(name, CASES[name], arguments, home)


if __name__ == "__main__":
    sys.exit(main())
