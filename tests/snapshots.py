"""Snapshots of rendered text, which tests compare whole."""

import os
from pathlib import Path


def matches(snapshot: Path, text: str) -> bool:
    """Compare a text with a snapshot, or write the snapshot with `WRITE_SNAPSHOTS=1`: look at the difference then."""
    if os.environ.get("WRITE_SNAPSHOTS"):
        snapshot.write_text(text, encoding="utf-8")
    assert text == snapshot.read_text(encoding="utf-8")  # pytest shows the difference
    return True
