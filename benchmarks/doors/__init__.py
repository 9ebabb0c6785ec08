"""One small training run for each door, in which variants take turns."""
