"""HTML page of a report. The page contains all data, styles and scripts, and needs no network."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

FILES = {
    "plot style": "uplot/uPlot.min.css",
    "style": "page.css",
    "plot": "uplot/uPlot.iife.min.js",
    "charts": "charts.js",
    "parts": "parts.js",
    "script": "page.js",
}

_PLACE = re.compile(r"\{\{([a-z ]+)\}\}")


def render(content: Mapping[str, Any]) -> str:
    """Render the content of `payload`.

    It is JSON in a script element, which the package's scripts insert as text, so the browser never runs code from a
    journal. The page's security policy allows only these scripts, and no network request.
    """
    folder = resources.files("perf_callbacks.report") / "page"
    parts = {place: (folder / name).read_text(encoding="utf-8") for place, name in FILES.items()}
    hashes = {place: _hash(text) for place, text in parts.items()}
    parts["hashes"] = " ".join(hashes[place] for place in ("plot", "charts", "parts", "script"))
    parts["style hashes"] = " ".join(hashes[place] for place in ("plot style", "style"))
    # an unescaped "<" could end the script element
    parts["data"] = json.dumps(visible(content), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return _PLACE.sub(lambda match: parts[match[1]], (folder / "page.html").read_text(encoding="utf-8"))


def visible(value: Any) -> Any:
    """Replace control characters in all texts: some reverse the order of letters on the page.

    >>> visible({"host": ["node" + chr(0x202E) + "7", 1.5]})
    {'host': ['node?7', 1.5]}
    """
    if isinstance(value, str):
        return value if value.isprintable() else "".join([letter if letter.isprintable() else "?" for letter in value])
    if isinstance(value, Mapping):
        return {visible(name): visible(content) for name, content in value.items()}
    return [visible(item) for item in value] if isinstance(value, list | tuple) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
