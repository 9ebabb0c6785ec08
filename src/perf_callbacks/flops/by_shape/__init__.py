"""Look up or predict the FLOPs of a step from the shapes of its batches, without counting again."""
