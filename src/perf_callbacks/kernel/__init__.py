"""Kernel: settings, records, engine, batches, the process and the fit. The kernel knows no feature."""
