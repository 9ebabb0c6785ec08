"""Shares of the time of a run, from which on something is said. Advice, cards and tables have them in common."""

WORTH = 0.01
"""A smaller loss or gain isn't worth a sentence, and may be chance."""

NOTABLE = 0.05
"""A smaller share is usual on a machine with other programs, and in the few steps of a profile."""

LARGE = 0.1
"""A larger share is noticed even if it is measured coarsely, such as by readings of a device's use."""

MAJORITY = 0.5
"""Something is the cause only if it explains this part."""
