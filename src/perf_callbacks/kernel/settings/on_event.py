"""The command for events. No file can set it, so a file from elsewhere can't run code."""

import shlex
from collections.abc import Mapping

from perf_callbacks.kernel.settings.config import ConfigError, printable

FIELD = "on_event"

VARIABLE = "PERF_CALLBACKS_ON_EVENT"

ENVIRONMENT_ALONE = f"{FIELD} is set by the environment alone: {VARIABLE}='python notify.py'"
"""For a command that code or a file sets."""

_SHELL = {"|", "||", "&", "&&", ";", "<", ">", ">>", "2>", "2>&1"}


def command(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command and its arguments; empty if none is set. Errors don't show the value, which may hold a secret.

    >>> command({"PERF_CALLBACKS_ON_EVENT": "notify.sh 'my room' --quiet"})
    ('notify.sh', 'my room', '--quiet')
    >>> command({"PERF_CALLBACKS_ON_EVENT": "cat >> events.jsonl"})
    Traceback (most recent call last):
        ...
    perf_callbacks.kernel.settings.config.ConfigError: PERF_CALLBACKS_ON_EVENT: got '>>', which only a shell \
understands, wanted a command with its arguments; for a shell, write sh -c '...'.
    """
    text = environ.get(VARIABLE, "").strip()
    if text.lower() in {"", "none", "off"}:
        return ()
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(
            f"{VARIABLE}: {str(error).lower()}, wanted a command with its arguments, quoted as for a shell."
        ) from None
    operator = next((word for word in words if word in _SHELL), None)
    if operator is not None:
        raise ConfigError(
            f"{VARIABLE}: got '{operator}', which only a shell understands, wanted a command with its arguments; "
            "for a shell, write sh -c '...'."
        )
    if not words[0]:
        raise ConfigError(f"{VARIABLE}: the command is empty, wanted a command with its arguments.")
    return words


def shown(words: tuple[str, ...]) -> str:
    """Return the command without its arguments, which may hold secrets.

    >>> shown(("curl", "https://hooks.example/secret")), shown(("notify.sh",))
    ('curl …', 'notify.sh')
    """
    return printable(words[0]) + (" …" if len(words) > 1 else "")
