"""Stalls: steps that stop ending, and the rank that causes it."""
