"""Shares of the time of a run, from which on something is said or done."""

WORTH = 0.01  # a smaller loss or gain isn't worth a sentence, and may be chance
NOTABLE = 0.05  # less is usual on a machine with other programs, and in the few steps of a profile
LARGE = 0.1  # noticed even if it is measured coarsely, such as by readings of a device's use
MAJORITY = 0.5  # something is the cause only if it explains this part

MOST_PART = 0.05  # for all counts of a fit, and as much for its profiles; the first of each is free
