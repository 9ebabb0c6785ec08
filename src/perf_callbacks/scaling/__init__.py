"""Scaling: throughput and efficiency on different numbers of devices, and the part of a step that grows most."""
