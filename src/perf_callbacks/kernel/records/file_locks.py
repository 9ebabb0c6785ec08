"""Advisory locks on open files: two writers never share a file, and neither waits for the other."""

import os
import sys

from perf_callbacks.kernel.foreign_errors import let_pass, suppress

if sys.platform == "win32":
    import msvcrt

    _BEYOND = 2**31 - 2
    """Position of the locked byte, beyond every record, because Windows forbids reading a locked byte."""

    def _take(file: int) -> None:
        os.lseek(file, _BEYOND, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _release(file: int) -> None:
        os.lseek(file, _BEYOND, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    try:
        import fcntl
    except ImportError:  # neither Windows nor POSIX, such as WebAssembly
        fcntl = None  # type: ignore[assignment]

    # A lock by `flock` belongs to the open file, so two fits in one process keep each other out as well.

    def _take(file: int) -> None:
        if fcntl is None:
            raise OSError("no locks here")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _release(file: int) -> None:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_UN)


def lock(file: int) -> bool:
    """Lock an open file. Return False if another writer holds the lock. Always True on a filesystem without locks."""
    try:
        _take(file)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        let_pass(error)
        return True
    return True


def unlock(file: int) -> None:
    """Release the lock now. Closing the file is not enough while a forked child holds the same open file."""
    with suppress(OSError):
        _release(file)
