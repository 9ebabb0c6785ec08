"""Scaling: how throughput, efficiency and the stages of a step change with the number of devices."""
