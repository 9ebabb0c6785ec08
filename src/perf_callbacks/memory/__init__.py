"""Memory: its parts in a step, its growth, and the use of the machine."""
