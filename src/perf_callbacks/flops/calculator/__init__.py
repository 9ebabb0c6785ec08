"""Compute the FLOPs and the sizes of a transformer from its dimensions, without running the model."""
