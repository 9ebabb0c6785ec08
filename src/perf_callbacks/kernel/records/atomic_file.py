"""Replace a file as a whole or not at all."""

import os
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress


def replace(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace a file. Raise `OSError` if writing fails.

    Args:
        path: The file.
        data: The new content.
        mode: Permissions of the file, whatever the process's umask is. None: the usual permissions of a new file.
    """
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)  # left by a killed run, or a link to a file of the user
    try:
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            while data:
                data = data[os.write(file, data) :]
        finally:
            os.close(file)
        if mode is not None:
            part.chmod(mode)
        part.replace(path)
    except BaseException:  # an interrupt, too
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
