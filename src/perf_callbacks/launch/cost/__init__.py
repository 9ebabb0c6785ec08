"""Cost of the callback on a machine: short trainings with and without the callback, in turns, for each integration."""
