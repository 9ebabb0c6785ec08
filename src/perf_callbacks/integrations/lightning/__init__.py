"""Integration for the `Trainer` of `lightning.pytorch` and the `Trainer` of `pytorch_lightning`."""
