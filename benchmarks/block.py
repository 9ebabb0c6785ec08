"""What the end of a step, a batch and the work that is done once for many steps cost, without a model.

    python benchmarks/block.py [--blocks 400]

A recorder with a journal is told of steps with the marks of a plain loop, whose FLOPs are known. Its clock makes each
step last some 2 ms. Each line is a kind of batch, in microseconds: the quickest and the 10th percentile of a batch, of
an ordinary end of a step, and of the end of every 256th, which reads the marks, adds the steps up and writes them to
the journal; the last is told for 64 of these steps.
"""

import argparse
import itertools
import logging
import random
import tempfile
import time
from pathlib import Path

import torch

from perf_callbacks import PerfConfig
from perf_callbacks.flops.by_shape.rating import PeakRating
from perf_callbacks.flops.by_shape.shaped_work import ShapedWork
from perf_callbacks.flops.count_records import estimated
from perf_callbacks.flops.work import Work, WorkKey
from perf_callbacks.kernel.engine.marks import Calls
from perf_callbacks.kernel.engine.stages import Stage
from perf_callbacks.kernel.engine.steps import BLOCK
from perf_callbacks.kernel.fit.location import FitLocation
from perf_callbacks.kernel.fit.recorder import Recorder
from perf_callbacks.kernel.settings.resolution import resolve

STAGES = (Stage.DATA, Stage.OTHER, Stage.FORWARD, Stage.OTHER, Stage.BACKWARD, Stage.UNDECIDED, Stage.OPTIMIZER)


def text(length, rows=8):
    return {"input_ids": torch.ones(rows, length, dtype=torch.long), "labels": torch.ones(rows, length)}


def masked(length, padding=0):
    mask = torch.ones(8, length, dtype=torch.long)
    mask[:, length - padding :] = 0
    return {**text(length), "attention_mask": mask}


WORK = Work({WorkKey("forward", "float32", "matmul"): 10**9, WorkKey("backward", "float32", "matmul"): 2 * 10**9})
KINDS = {
    "pairs": ([(torch.ones(8, 32), torch.ones(8))], 1),
    "text": ([text(128)], 1),
    "with a mask": ([masked(128)], 1),
    "many lengths": ([text(length) for length in range(64, 128, 2)], 1),
    "many lengths, padded": ([masked(length, length // 8) for length in range(64, 128, 2)], 1),
    "8 micro-batches": ([text(128)], 8),
}


def clock_of_training(several):
    """A clock that makes a step last some 2 ms. As the real one, it is a call into C; it goes on when it is read."""
    lengths = [random.uniform(0.00004, 0.00044) / several for _ in range(10007)]
    return itertools.accumulate(itertools.cycle(lengths)).__next__


def recorder_in(directory, several):
    settings = resolve(PerfConfig(output_dir=directory), {})
    place = FitLocation(integration="loop", directory=Path(directory), device=torch.device("cpu"))
    recorder = Recorder(settings, place, clock=clock_of_training(several))
    shaped = ShapedWork(recorder.reader)
    shaped.rate(PeakRating.from_count(estimated(WORK, step=2), None))
    recorder.engine.use(shaped)
    return recorder, shaped


def learn(recorder, shaped, batches, several):
    """As after a counted step of each shape."""
    for batch in batches:
        shape = recorder.reader.read(batch).shape
        shaped.learn([shape] * several, [WORK] * several, Calls(several, several))


def measure(batches, several, blocks):
    """Seconds of each batch, of each ordinary end of a step, and of the end of each block."""
    clock = time.perf_counter
    read, ended, full = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        recorder, shaped = recorder_in(directory, several)
        learn(recorder, shaped, batches, several)
        following = itertools.cycle(batches)
        step = 0
        for _ in range(blocks + 2):
            for place in range(BLOCK):
                for batch in itertools.islice(following, several):
                    for stage in STAGES:
                        recorder.tape.write((stage, recorder.clock()))
                    start = clock()
                    recorder.batch(batch)
                    read.append(clock() - start)
                step += 1
                start = clock()
                recorder.end_step(step)
                (full if place == BLOCK - 1 else ended).append(clock() - start)
        recorder.close()
    return read[2 * BLOCK * several :], ended[2 * BLOCK :], [seconds * 64 / BLOCK for seconds in full[2:]]


def told(seconds):
    ordered = sorted(seconds)
    return f"{ordered[0] * 1e6:.2f} / {ordered[len(ordered) // 10] * 1e6:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=KINDS)
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    print("| batches | batch | end of a step | work for 64 steps |\n|---|---|---|---|")
    for name in options.kinds:
        batches, several = KINDS[name]
        figures = map(told, measure(batches, several, options.blocks))
        print(f"| {name} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
