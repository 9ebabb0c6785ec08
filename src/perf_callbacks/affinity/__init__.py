"""Affinity: a rank runs on CPUs near its GPU."""
