"""A private directory inside a directory that all users may write to.

Without a sticky bit there, another user may replace it at any time. So it is checked and held open, and files are
reached through it, without links. Windows can't hold a directory, and only checks that it is one.
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
"""File names of notes, finished or still being written."""

LARGEST_FILE = 64_000_000
"""Bytes of the largest note that is read."""


class PrivateDirectory:
    """Reads and writes files in a directory that only this user has access to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: int | None = None

    def make(self) -> None:
        """Raise `PermissionError` if other users have access to the directory."""
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # the last rank of an earlier fit has just removed it
            self.find()

    def find(self) -> None:
        """Raise `OSError` if the directory is missing or other users have access."""
        status = os.lstat(self.path)
        if self._held is not None and os.path.samestat(os.fstat(self._held), status):
            return
        self.close()
        if not stat.S_ISDIR(status.st_mode):
            raise PermissionError(f"{self.path} is not a directory; remove it")
        if not HOLDS:
            self._check(status)
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

    def _check(self, status: os.stat_result) -> None:
        if not hasattr(os, "getuid"):
            return
        if status.st_uid != os.getuid():
            raise PermissionError(f"the directory {self.path} belongs to somebody else")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise PermissionError(f"the directory {self.path} is open to other users (mode {mode:o}); remove it")

    def _at(self, name: str) -> str:
        """Return a name in the held directory, or a path on Windows."""
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
        """A file older than `since` counts as missing, because an earlier job wrote it."""
        file = os.open(self._at(name), _READ, dir_fd=self._held)
        try:
            status = os.fstat(file)
            own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
            if not stat.S_ISREG(status.st_mode) or not own or status.st_mtime < since or status.st_size > LARGEST_FILE:
                raise FileNotFoundError(name)
            return os.read(file, status.st_size)
        finally:
            os.close(file)

    def identity(self, name: str) -> tuple[int, int]:
        """Return inode and modification time. A later file of the same name has others."""
        return _identity(os.stat(self._at(name), dir_fd=self._held, follow_symlinks=False))

    def remove(self, names: Iterable[str] | None = None) -> None:
        """Remove these files, or all files (`names` None), and then the directory if it is empty.

        A file that is no note may be the user's: then not all files are removed, but none.
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


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns
