"""Baseline of a run: the ledger of earlier runs, and the comparison of a run with the last runs of its program."""
