"""Advice: small pure rules that name what limits a run, and the one change that helps."""
