"""Counter of a step, operation by operation."""
