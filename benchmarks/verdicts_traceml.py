"""What TraceML says of the plain loops of `verdicts.py`.

    pip install traceml-ai
    OMP_NUM_THREADS=1 traceml run benchmarks/verdicts_traceml.py --args data   # or any other cause, or healthy

The loop is that of `verdicts.loop`, instrumented as TraceML's README says.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import traceml_ai

sys.path.insert(0, str(Path(__file__).parent))
import verdicts

warnings.simplefilter("ignore")
torch.set_num_threads(1)
cause = sys.argv[1].replace("healthy", "")
traceml_ai.init(mode="auto")
run = verdicts.Run(cause, 0, Path(tempfile.mkdtemp()))
run.model.train()
for step, batch in enumerate(run.loader):
    with traceml_ai.trace_step(run.model):
        loss = run.model(**batch).loss
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.after_step(loss.detach())
    if cause == "evaluation" and step % 3 == 2:
        run.evaluate()
