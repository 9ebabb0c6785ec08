"""A watchdog for tests: its seconds pass when a test says so."""


class Watches:
    """Ticked for by the test, not by a thread."""

    def __init__(self):
        self.watched, self.now = [], 0.0

    def watch(self, watched):
        self.watched.append(watched)

    def pass_seconds(self, seconds):
        for _ in range(seconds):
            self.now += 1.0
            for one in self.watched:
                one.tick(self.now)
