"""Facts about the process and its machine, and one owner for each piece of process-wide state."""
