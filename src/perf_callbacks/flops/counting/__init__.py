"""The counter of one step, operation by operation."""
