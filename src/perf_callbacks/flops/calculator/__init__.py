"""FLOPs and sizes of a transformer from its dimensions, without a run."""
