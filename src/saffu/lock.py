"""A lock on a model folder, so that two processes that change it do so one after the other."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from saffu.errors import SaffuError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_held: set[tuple[int, Path]] = set()  # by thread: one that has a folder's lock may take it again


@contextmanager
def exclusive(folder: Path, wait: bool) -> Iterator[None]:
    """Be the only writer of a folder; another one is waited for, or an error.

    The lock is on a file beside the folder, since the folder itself is replaced as a whole. It ends with the process,
    however that ends; the file is removed by whoever holds the lock.
    """
    place = Path(folder).resolve()
    mine = (threading.get_ident(), place)
    if mine in _held:
        yield
        return
    path = place.with_name(f".{place.name}.lock")
    descriptor = _try(path)
    if descriptor is None and not wait:
        raise SaffuError(f"another saffu is writing to {folder}; wait until it has ended")
    if descriptor is None:
        print(f"saffu: waiting for another saffu that is writing to {folder}", file=sys.stderr)
    while descriptor is None:
        time.sleep(0.05)
        descriptor = _try(path)
    _held.add(mine)
    try:
        yield
    finally:
        _held.discard(mine)
        with suppress(OSError):  # where an open file cannot be removed it stays, and does no harm
            path.unlink()
        os.close(descriptor)


def _try(path: Path) -> int | None:
    """A descriptor of the file, locked; None if another process has it, or has just removed it as it left."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, PermissionError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
