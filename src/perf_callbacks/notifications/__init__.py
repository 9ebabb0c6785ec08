"""Notifications: a command of the user gets each important event of a fit as JSON on its stdin.

These events are stalls, slow ranks, a drift of the step time, and the end of the fit.
"""
