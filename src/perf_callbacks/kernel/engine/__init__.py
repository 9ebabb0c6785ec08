"""Engine: marks become steps, steps become rows. Standard library only: no clock, no input or output."""
