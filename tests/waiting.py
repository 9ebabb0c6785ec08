"""Wait for another process or thread."""

import time


def until(condition):
    """Wait until a condition is true. The time limit of pytest ends a wait that lasts too long."""
    while not condition():
        time.sleep(0.01)
