"""Stalls: steps stop ending. Find the rank that causes this."""
