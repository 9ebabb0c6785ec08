"""Stragglers: ranks and steps that others wait for."""
