"""Integration for a plain PyTorch loop.

from perf_callbacks.loop import measure

with measure(model=model, optimizer=optimizer, loader=loader) as perf:
    for batch in perf.loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

from perf_callbacks.integrations.loop.measurement import Measurement, measure

__all__ = ["Measurement", "measure"]
