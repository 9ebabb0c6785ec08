"""Measurement of the callback's cost on this machine, by short trainings with and without the callback."""
