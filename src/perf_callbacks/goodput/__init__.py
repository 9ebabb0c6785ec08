"""Goodput: the share of a job's time that brought the training forward, and the causes of all other time."""
