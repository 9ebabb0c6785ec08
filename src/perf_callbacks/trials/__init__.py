"""Trials, in which `perf-callbacks try` measures a program's speed with each remedy."""

TRIAL = "_PERF_CALLBACKS_TRIAL"
"""Environment variable with the path of a trial's plan. Processes outside of trials don't have this variable."""
