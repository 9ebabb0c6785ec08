"""Notifications: a command of the user gets stalls, slow ranks, drift and the end of a fit as JSON on its stdin."""
