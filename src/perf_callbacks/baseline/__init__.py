"""Baseline of a run: the ledger that lists earlier runs, and the comparison of a run with earlier runs."""
