"""Measure the callback's cost on this machine: compare short trainings with and without the callback."""
