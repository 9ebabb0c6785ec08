"""Kernel: settings, records, engine, batches, the process and the fit. It knows no feature."""
