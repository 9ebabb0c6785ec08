"""Replace a file as a whole or not at all. Each file of ours that is not appended to is written here."""

from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

from perf_callbacks.kernel.foreign_errors import suppress


def replace(path: Path, data: bytes | Iterable[bytes], mode: int | None = None) -> None:
    """Replace a file. Raise `OSError` if writing fails.

    Nobody can put a link to another file of the user in the way: the name of the new file is drawn at random.

    Args:
        path: The file. If it is a link, the link is replaced.
        data: The new content, whole or in parts.
        mode: Permissions of the file, whatever the process's umask is. None: the usual permissions of a new file.
    """
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        with part.open("xb") as file:  # follows no link
            file.writelines([data] if isinstance(data, bytes) else data)
        if mode is not None:
            part.chmod(mode)
        part.replace(path)
    except BaseException:  # an interrupt, too
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
