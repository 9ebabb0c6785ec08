"""What is counted of a step of each model of the tests' zoo, beside what it costs by hand: a table in Markdown.

python benchmarks/zoo.py          # what every run of the tests compares
python benchmarks/zoo.py --all    # every attention with every checkpointing and every training
"""

import argparse
import sys
import warnings
from pathlib import Path

import torch

from perf_callbacks.flops.counting.counter import FlopCounter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
COLUMNS = ("model", "attention", "checkpointing", "training", "counted", "by hand", "ratio", "replayed", "by hand")


def row(case) -> tuple[object, ...]:
    model = case.build()
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
    with FlopCounter() as counter:
        case.step(model, case.batch(), optimizer)
    work, hand = counter.work(), case.formula()
    ratio = f"{work.model_flops / hand.model_flops:.6f}"
    replayed = [f"{phases.get('recompute', 0):,}" for phases in (work.by_phase, hand.by_phase)]
    settings = (case.family, case.attention, case.checkpointing, case.training)
    return (*settings, f"{work.model_flops:,}", f"{hand.model_flops:,}", ratio, *replayed)


def main() -> None:
    from flops.model_kinds import RELEASE
    from flops.zoo import CASES, REST
    from transformers.utils import logging

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    cases = CASES + REST if parser.parse_args().all else CASES
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    print("|", " | ".join(COLUMNS), "|")
    print("|---" * 4 + "|---:" * 5 + "|")
    for case in cases:
        if case.needs_transformers <= RELEASE:
            print("|", " | ".join(str(cell) for cell in row(case)), "|")


if __name__ == "__main__":
    main()
