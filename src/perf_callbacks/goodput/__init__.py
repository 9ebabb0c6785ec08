"""Goodput: the share of the time of a job that bought progress, and the causes of all other time."""
