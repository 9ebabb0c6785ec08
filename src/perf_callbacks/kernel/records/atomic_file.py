"""Replace a file as a whole or not at all."""

import os
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress

_AS_GIVEN = getattr(os, "O_BINARY", 0)  # otherwise Windows writes "\r\n" for "\n"


def replace(path: Path, data: bytes, mode: int | None = None, owner: tuple[int, int] | None = None) -> None:
    """Replace a file. Raise `OSError` if writing fails.

    Args:
        path: The file.
        data: The new content.
        mode: Permissions of the file, whatever the process's umask is. None: the usual permissions of a new file.
        owner: User and group of the file, if the system lets this process set them. None: those of this process.
    """
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)  # left by a killed run, or a link to a file of the user
    try:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _AS_GIVEN, 0o666)
        try:
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
        if owner is not None:
            with suppress(OSError, AttributeError):  # Windows has no owners
                os.chown(part, *owner)
        if mode is not None:
            part.chmod(mode)
        part.replace(path)
    except BaseException:  # an interrupt, too
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
