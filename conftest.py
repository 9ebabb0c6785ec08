"""Run the code in README, the pages and docstrings as tests; each page has a model, data and a directory of its own."""

import gc
import os
import sys
import tempfile
from pathlib import Path

import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection

_HOME = Path.cwd()


def _stage(namespace):
    sys.path.insert(0, str(Path(__file__).parent / "tests"))
    from trainings.models import Tokens, llama
    from transformers import HfArgumentParser, TrainingArguments
    from transformers.utils import logging

    from perf_callbacks import PerfConfig
    from perf_callbacks.loop import measure
    from perf_callbacks.transformers import PerfCallback

    logging.disable_progress_bar()
    os.chdir(tempfile.mkdtemp())
    dataset, model = Tokens(48), llama()
    namespace |= {
        "HfArgumentParser": HfArgumentParser,
        "PerfCallback": PerfCallback,
        "PerfConfig": PerfConfig,
        "TrainingArguments": TrainingArguments,
        "dataset": dataset,
        "fetch": lambda step: {name: values[None] for name, values in dataset[step].items()},
        "loader": torch.utils.data.DataLoader(dataset, batch_size=4),
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "steps": 4,
    }
    with measure(model=model, optimizer=namespace["optimizer"], loader=(), config=PerfConfig(output_dir="out")):
        pass  # a journal to read
    sys.argv = ["train.py", "--output_dir", "out", "--gc", "observe"]


def _leave(namespace):
    os.chdir(_HOME)
    namespace.clear()
    gc.collect()  # a loop that a page shows and doesn't end is abandoned here
    if not gc.get_threshold()[0]:
        raise RuntimeError("a fit still holds the collector")


_pages = Sybil(parsers=[PythonCodeBlockParser()], patterns=["README.md", "docs/*.md"], setup=_stage, teardown=_leave)
_docstrings = Sybil(parsers=[DocTestParser()], path="src", patterns=["*.py"])
pytest_collect_file = SybilCollection([_pages, _docstrings]).pytest()
