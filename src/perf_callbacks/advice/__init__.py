"""Advice: each rule names a limit of a run and a remedy."""
