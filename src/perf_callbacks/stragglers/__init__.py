"""Stragglers: ranks that other ranks wait for, and steps that take unusually long."""
