"""A watchdog whose seconds pass when a test advances them."""


class FakeWatchdog:
    """Ticks when the test calls `pass_seconds`; runs no thread."""

    def __init__(self):
        self.watched, self.now = [], 0.0

    def watch(self, watched):
        self.watched.append(watched)

    def pass_seconds(self, seconds):
        for _ in range(seconds):
            self.now += 1.0
            for one in self.watched:
                one.tick(self.now)
