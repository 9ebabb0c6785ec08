"""Does the verdict of a job name the slow rank and the cause? Real jobs of two ranks on a CPU, one slow all the time.

    OMP_NUM_THREADS=1 python benchmarks/job_verdicts.py             # 12 jobs with a fault of rank 1, 4 healthy jobs
    OMP_NUM_THREADS=1 python benchmarks/job_verdicts.py --only 0 7  # jobs by their place in the table
    OMP_NUM_THREADS=1 python benchmarks/job_verdicts.py --cards     # also print the closing cards

The callback and the trainers keep their defaults. In each step of rank 1 something takes some 25 ms longer than on
rank 0: a sleep in the dataset, the forward, the optimizer or a callback, a call of `gc.collect()`, or busy processes
on its CPU. (The jobs that collect garbage freeze the objects of the imports first: else a collection takes 250 ms.) A
verdict is right if

- the first sentence of rank 0's closing card names rank 1 alone, and the cause;
- the summary's first finding is that sentence;
- the card's line on the cost of rank 1 has the same remedy;
- no other finding of rank 0 promises 5 % or more, or advises loader workers.

The verdict of a healthy job is right if there is no finding about slow ranks or uneven work, no finding that promises
5 % or more, and no advice of loader workers.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import straggler_setup_rank as rank_of_setup
import torch
import torch.distributed as dist
from straggler_rank import delay
from straggler_setup_rank import BATCH, Forked, NetOfKwargs, accelerate, ddp, lightning, llama, preload, tokens
from stragglers import job

from perf_callbacks import PerfConfig
from perf_callbacks.stragglers.peers import DATA, GC, HOST, STEAL
from perf_callbacks.stragglers.text import NAMES

STEPS, STEP_SECONDS, FAULT_SECONDS = 600, 0.02, 0.025
"""Steps of a job, the seconds of a healthy forward, and the seconds that rank 1 takes longer in each step."""
CPU_SECONDS = 0.012
"""Seconds for which a forward needs a CPU in jobs in which a CPU is stolen."""
BURNERS, OBJECTS = 3, 300_000
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"
LARGE = 0.05
"""Least share of a finding that counts as advice."""

SETUPS = {
    "hf_llama": ("Hugging Face `Trainer`, a Llama", rank_of_setup.transformers(llama, tokens)),
    "hf": ("Hugging Face `Trainer`, an MLP with `**kwargs`", rank_of_setup.transformers(NetOfKwargs)),
    "lightning_buffers": ("Lightning, BatchNorm", lightning(buffers=True)),
    "lightning_sync_dist": ("Lightning, BatchNorm, `sync_dist=True`", lightning(buffers=True, logged=True)),
    "accelerate_gather": (
        "Accelerate, BatchNorm, `gather_for_metrics`", accelerate(buffers=True, gather=True),
    ),
    "buffers": ("DDP in a loop, BatchNorm", ddp(buffers=True)),
}  # fmt: skip

FAULTS = {
    "data": ("a dataset that sleeps", DATA),
    "callback": ("a callback that sleeps", HOST),
    "forward": ("a forward that sleeps", HOST),
    "optimizer": ("an optimizer that sleeps", HOST),
    "gc": ("`gc.collect()` in each step", GC),
    "steal": (f"{BURNERS} busy processes on its CPU", STEAL),
}
"""What each fault is, and the cause to name."""

JOBS = (
    ("hf_llama", "data"),
    ("hf_llama", "steal"),
    ("hf", "callback"),
    ("hf", "gc"),
    ("lightning_buffers", "forward"),
    ("lightning_buffers", "steal"),
    ("lightning_sync_dist", "data"),
    ("lightning_sync_dist", "optimizer"),
    ("accelerate_gather", "callback"),
    ("accelerate_gather", "optimizer"),
    ("buffers", "forward"),
    ("buffers", "gc"),
    ("hf_llama", None),
    ("lightning_sync_dist", None),
    ("accelerate_gather", None),
    ("buffers", None),
)


class LastingFault:
    """A fault that a rank has in each step. Has the methods of `straggler_setup_rank.Faults`."""

    def __init__(self, plan):
        self.plan, self.fault = plan, plan["fault"] if plan["rank"] == 1 else None
        self.seconds, self.burners = 0.0, []
        self.schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        if plan["fault"] == "gc":
            gc.freeze()
        self.objects = [[number] for number in range(OBJECTS)] if plan["fault"] == "gc" else []
        self.cpu_seconds = CPU_SECONDS if plan["fault"] == "steal" else 0.0
        if plan["fault"] == "steal":  # each rank has a CPU, as launchers arrange it
            cpu = sorted(os.sched_getaffinity(0))[plan["rank"]]
            os.sched_setaffinity(0, {cpu})
            if self.fault:
                self.burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(BURNERS)]

    def at(self, site):
        """Training reaches a site of the current step."""
        if site != ("callback" if self.fault == "gc" else self.fault):
            return
        began = time.perf_counter()
        if self.fault == "gc":
            gc.collect()
        else:
            time.sleep(FAULT_SECONDS / (BATCH if site == "data" else 1))
        self.seconds += time.perf_counter() - began

    def forward(self):
        """The model begins to compute: the usual work is a sleep, as if it waited for a device."""
        self.at("forward")
        began, until = time.perf_counter(), time.thread_time() + self.cpu_seconds
        while time.thread_time() < until:
            pass
        if self.fault == "steal":
            self.seconds += time.perf_counter() - began - self.cpu_seconds
        time.sleep(STEP_SECONDS - self.cpu_seconds)

    def ended(self):
        """A step ends, after the user's code at its end."""
        self.at("callback")

    def end(self):
        """End the processes that take a CPU."""
        for burner in self.burners:
            burner.kill()
            burner.wait()


class Rank(Forked):
    """A rank of a job in a fork of this process. Its output goes to a file."""

    @staticmethod
    def run(own, environ, errors):
        os.environ |= environ
        for stream, path in ((sys.stderr, errors), (sys.stdout, errors.with_suffix(".out"))):
            stream.flush()
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream.fileno())
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        torch.manual_seed(0)
        fault = LastingFault(own)
        try:
            began = time.perf_counter()
            summary = SETUPS[own["setup"]][1](fault, PerfConfig(output_dir=own["directory"]))
            seconds = time.perf_counter() - began
        finally:
            fault.end()
        findings = [[one.cause, one.share, one.evidence, one.remedy] for one in summary.findings]
        told = {"findings": findings, "seconds": seconds, "fault_seconds": fault.seconds}
        told["without_cpu"] = delay(fault.schedule)
        Path(own["directory"], f"rank{own['rank']}.told").write_text(json.dumps(told), encoding="utf-8")
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.stdout.flush()


def first_sentence(text):
    """The verdict in a card without line breaks."""
    return text.partition(" also: ")[0].partition(f" {STEPS} steps, ")[0]


def wrong(fault, text, findings):
    """Yield what is wrong with a verdict."""
    others, sentence = findings, first_sentence(text)
    if fault is not None:
        name = NAMES[FAULTS[fault][1]]
        if f"for rank 1: {name}" not in sentence:
            yield f"not 'rank 1: {name}'"
        if not findings or findings[0][0] != "straggler" or not sentence.startswith(findings[0][2]):
            yield "the first finding is another"
        elif not text.partition("rank 1 cost the job ")[2].partition("; try ")[2].startswith(findings[0][3]):
            yield "the card's line on the cost has another remedy"
        others = findings[1:]
    for cause, share, evidence, remedy in others:
        if cause in {"straggler", "uneven"} or (share or 0) >= LARGE or "workers" in remedy:
            yield f"{cause}: {evidence}; try {remedy}"


def run(setup, fault, given):
    """Run a job. Returns True if its verdict is right."""
    plan = {"setup": setup, "fault": fault, "world_size": 2, "steps": STEPS}
    with tempfile.TemporaryDirectory() as directory:
        told = job(plan, Path(directory), Rank)
        printed = Path(directory, "rank0.out").read_text()
    lines = printed[printed.rfind("perf_callbacks: ") :].removeprefix("perf_callbacks: ").splitlines()
    card, findings = " ".join([line.strip() for line in lines]), told[0]["findings"]
    errors = [*wrong(fault, card, findings)]
    injected = f"{told[1]['fault_seconds']:.1f} of {told[1]['seconds']:.1f}"
    starved = " and ".join([f"{one['without_cpu']:.2f}" for one in told])
    name = FAULTS[fault][0] if fault else "none"
    cells = [SETUPS[setup][0], name, injected, starved, first_sentence(card), "; ".join(errors) or "yes"]
    print("| " + " | ".join(cells) + " |", flush=True)
    if given.cards:
        print(printed, *findings, sep="\n", flush=True)
    return not errors


def main():
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--only", type=int, nargs="*", metavar="JOB", help=f"0 to {len(JOBS) - 1}")
    arguments.add_argument("--cards", action="store_true", help="also print rank 0's output and findings")
    given = arguments.parse_args()
    jobs = [JOBS[place] for place in given.only] if given.only else JOBS
    preload([setup for setup, _ in jobs])
    print(
        "| set-up | rank 1 has | fault, s of the run | ranks 0 and 1 lacked a CPU, s | first sentence | right |\n"
        + 6 * "|---"
        + "|",
        flush=True,
    )
    right = {True: [], False: []}
    for setup, fault in jobs:
        right[fault is not None].append(run(setup, fault, given))
    print(f"\nright: {sum(right[True])} of {len(right[True])} jobs with a slow rank, "
          f"{sum(right[False])} of {len(right[False])} healthy jobs")  # fmt: skip


if __name__ == "__main__":
    main()
