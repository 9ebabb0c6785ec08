"""Trials: a program's speed under each remedy, measured by `perf-callbacks try`."""

TRIAL = "_PERF_CALLBACKS_TRIAL"
"""Variable with the path of a trial's plan. Without this variable, a process is no part of a trial."""
