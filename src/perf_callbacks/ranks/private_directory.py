"""A private directory inside a directory that all users may write to.

Without a sticky bit on the outer directory, another user may replace the private directory at any time. So this module
opens the directory, checks it and keeps it open: the directory is then "held". Files are reached through the held
directory, never through its path, and no link is followed. On Windows, a directory can't be held, so files are reached
through its path. The only check on Windows is that the path is a directory.
"""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress

HOLDS = {os.open, os.stat, os.unlink, os.rename} <= os.supports_dir_fd and os.listdir in os.supports_fd
"""True if this system opens files through an open directory."""

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)

_NOTE = re.compile(r"[a-z]+\d*( \d+)?(\.\d+)?")
"""Pattern of the file name of a note, finished or still being written."""

LARGEST_FILE = 64_000_000
"""Size, in bytes, of the largest note that is read."""


class PrivateDirectory:
    """Reads and writes files in a directory that only this user has access to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None

    def make(self) -> None:
        """Make and open the directory. Raise `PermissionError` if other users have access to the directory."""
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # the last rank of an earlier fit has just removed it
            self.find()

    def find(self) -> None:
        """Open the directory at the path. Raise `OSError` if the directory is missing or other users have access."""
        found = os.lstat(self.path)
        if self._held is not None and os.path.samestat(os.fstat(self._held), found):
            return
        self.close()
        if not stat.S_ISDIR(found.st_mode):
            raise PermissionError(f"{self.path} is not a directory; remove it")
        if not HOLDS:
            self._check(found)
            return
        held = os.open(self.path, _DIRECTORY)
        try:
            self._check(os.fstat(held))
        except BaseException:
            os.close(held)
            raise
        self._held = held

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def __del__(self) -> None:
        try:  # noqa: SIM105 at the exit of the interpreter, `suppress` may be gone
            self.close()
        except Exception:  # noqa: BLE001, S110 a finalizer has no caller
            pass

    def _check(self, found: os.stat_result) -> None:
        if not hasattr(os, "getuid"):
            return
        if found.st_uid != os.getuid():
            raise PermissionError(f"the directory {self.path} belongs to somebody else")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise PermissionError(f"the directory {self.path} is open to other users (mode {mode:o}); remove it")

    def _at(self, name: str) -> str:
        """Return the name of a file in the held directory, or the file's path on Windows."""
        if HOLDS and self._held is None:
            raise FileNotFoundError(f"{self.path} is not held")
        return name if HOLDS else str(self.path / name)

    def write(self, name: str, data: bytes) -> tuple[int, int]:
        file = os.open(self._at(name), _WRITE, 0o600, dir_fd=self._held)
        try:
            while data:
                data = data[os.write(file, data) :]
            return _identity(os.fstat(file))
        finally:
            os.close(file)

    def rename(self, name: str, new: str) -> None:
        os.replace(self._at(name), self._at(new), src_dir_fd=self._held, dst_dir_fd=self._held)

    def read(self, name: str, *, since: float) -> bytes:
        """Read a file of this user. A file older than `since` counts as missing, because an earlier job wrote it."""
        file = os.open(self._at(name), _READ, dir_fd=self._held)
        try:
            found = os.fstat(file)
            own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
            if not stat.S_ISREG(found.st_mode) or not own or found.st_mtime < since or found.st_size > LARGEST_FILE:
                raise FileNotFoundError(name)
            return os.read(file, found.st_size)
        finally:
            os.close(file)

    def identity(self, name: str) -> tuple[int, int]:
        """Return the inode and modification time of a file. A later file of the same name has other values."""
        return _identity(os.stat(self._at(name), dir_fd=self._held, follow_symlinks=False))

    def remove(self, names: Iterable[str] | None = None) -> None:
        """Remove the files `names`, or all files if `names` is None. Remove the directory if no file is left.

        If `names` is None and a file doesn't have the name of a note, nothing is removed, because the directory may
        hold other files of the user.
        """
        if names is None:
            names = os.listdir(self.path if self._held is None else self._held)  # noqa: PTH208 of the open directory
            if not all(map(_NOTE.fullmatch, names)):
                return
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self._at(name), dir_fd=self._held)
        with suppress(OSError):  # there are notes of other ranks
            self.path.rmdir()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_ino, found.st_mtime_ns
