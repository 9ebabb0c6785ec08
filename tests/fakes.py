"""Stand-ins for the clock and for an accelerator, driven by hand."""

from collections import deque


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeStream:
    """An accelerator's stream: work is queued at once and done later, by `run`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: deque = deque()
        self.waited = 0

    def work(self, seconds: float) -> None:
        self._queue.append(seconds)

    def event(self) -> "FakeEvent":
        return FakeEvent(self)

    def enqueue(self, event: "FakeEvent") -> None:
        self._queue.append(event)

    def run(self) -> None:
        """Do everything that was queued."""
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, FakeEvent):
                item.at = self.now
            else:
                self.now += item


class FakeEvent:
    """As `torch.cuda.Event(enable_timing=True)`: times in milliseconds, an error for what is not done."""

    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self.at: float | None = None

    def record(self) -> None:
        self.at = None
        self._stream.enqueue(self)

    def query(self) -> bool:
        return self.at is not None

    def synchronize(self) -> None:
        self._stream.waited += 1
        raise AssertionError("nobody waits for an event")

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        if self.at is None or end_event.at is None:
            raise RuntimeError("Both events must be recorded and done")
        return (end_event.at - self.at) * 1000
