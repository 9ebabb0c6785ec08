"""Count the FLOPs of a running step, operation by operation."""
