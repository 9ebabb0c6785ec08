"""Scaling: throughput and efficiency over numbers of devices, and the part of a step that grows with them."""
