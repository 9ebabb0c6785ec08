"""Baseline of a run: the ledger of earlier runs, and how a run stands to the last runs of the same program."""
