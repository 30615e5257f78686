"""How everything is written: whole or not at all, never over what is not ours, with the permissions it had."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.format import warn

Array = npt.NDArray[Any]
Content = bytes | Mapping[str, Array] | Callable[[], bytes | Mapping[str, Array]]
"""What a file holds: bytes, or arrays by name, which are written as safetensors."""

FRESH = r"writing-[0-9a-f]{12}"  # what is being written gets such a name
POLL = 0.05  # seconds between attempts to take a lock
DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
HEAD = 4096  # bytes at the beginning of a file that show whether it is ours
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def require_new_file(path: Path, force: bool, ours: str) -> None:
    """Fail before the work if a file cannot be written here.

    An existing file is replaced only with `force`, and only if it is empty or begins like those that we write: `ours`
    is a regular expression for their beginning. Pipes and character devices are written to and never replaced.
    """
    path = Path(path)
    if path.is_dir():
        raise SaffuError(f"{path} is a folder; pass the name of a file")
    if is_stream(path):
        return
    if not path.exists():
        return
    if not path.is_file():
        raise SaffuError(f"{path} is not a regular file, a pipe, or a character device; choose another name")
    if not force:
        raise SaffuError(f"{path} exists; choose another name, or replace it with `force`")
    with path.open("rb") as file:
        if not re.match(ours.encode() + rb"|\Z", file.read(HEAD)):
            raise SaffuError(f"will not replace {path}: saffu did not write it; move it first, or choose another name")


@contextmanager
def replacing(path: Path, force: bool = True) -> Iterator[BinaryIO]:
    """A file to write that takes its place, whole, at the end: a reader, or a crash, sees the old version or the new.

    A pipe or a character device is written to directly. Without `force`, a file that has appeared meanwhile stays.
    """
    path = Path(path)
    if is_stream(path):
        with path.open("wb") as stream:
            yield stream
        return
    path = path.resolve()  # a link stays a link to the file that is replaced
    if path.exists() and not path.is_file():
        raise SaffuError(f"{path} is not a regular file; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.writing-{uuid4().hex[:12]}")
    with locked(path, wait=True):
        sweep(path)
        try:
            with fresh.open("xb") as file:
                if path.exists():
                    keep_permissions(path, fresh)
                yield file
                file.flush()
                os.fsync(file.fileno())
            _put(fresh, path, force)
        finally:
            fresh.unlink(missing_ok=True)


def sweep(path: Path) -> None:
    """Remove what writers of a file that were killed have left next to it. The caller holds its lock."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.writing-*"):
        if re.fullmatch(re.escape(f".{path.name}.") + FRESH, left.name):
            left.unlink()


def _put(fresh: Path, path: Path, force: bool) -> None:
    """Move a file to its place."""
    if not force:
        try:
            os.link(fresh, path)  # fails if there is a file, unlike a change of name
        except FileExistsError:
            raise SaffuError(f"{path} exists; choose another name, or replace it with `force`") from None
        except OSError:  # a file system without links
            pass
        else:
            return
    fresh.replace(path)


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[None]:
    """Hold the lock of a folder or a file: on a file next to it, because it is replaced as a whole."""
    from filelock import FileLock, Timeout

    place = Path(path).resolve()
    own = place.with_name(f".{place.name}.lock")
    if own.is_symlink() or (own.exists() and (not own.is_file() or own.stat().st_size)):
        raise SaffuError(f"{own} is not a lock file of saffu, which would be empty; move it first")
    lock = FileLock(own, is_singleton=True)  # one object per path, so that a thread may take it again
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise SaffuError(f"another saffu process is writing to {path}; try again when it has finished") from None
        warn(f"waiting for another saffu process that is writing to {path}")
        lock.acquire(poll_interval=POLL)
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            with suppress(OSError):  # Windows does not remove an open file
                own.unlink()
        lock.release()


def write_file(path: Path, content: Content) -> None:
    """Replace one file of our own, atomically; see `require_new_file` for what a user has named."""
    with replacing(path) as file:
        for piece in pieces(content):
            file.write(piece)


def write_durably(path: Path, content: Content) -> str:
    """Write a new file with the owner and mode of its folder, and wait until it is on the disk; return its SHA-256."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        keep_permissions(path.parent, path)
        for piece in pieces(content):
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def pieces(content: Content) -> Iterator[Any]:
    """The bytes of a content, one buffer after the other."""
    data = content() if callable(content) else content
    return iter([data]) if isinstance(data, bytes) else to_safetensors(data)


def to_safetensors(arrays: Mapping[str, Array]) -> Iterator[Any]:
    """The content of a safetensors file in pieces: the header, then each array, copied only if it is not contiguous."""
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so that each array is aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers requires it
    end = 0
    for name in names:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        dtype = DTYPE_NAMES[array.dtype.newbyteorder("<").str]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        little_endian = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        yield np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8)


def require_apart(out: Path, *sources: Path) -> None:
    """Fail if the output is one of the inputs, whatever their names, or contains one."""
    place = Path(out).resolve()
    for source in sources:
        if not (Path(source).exists() and place.exists()):
            continue
        inside = [Path(source).resolve(), *Path(source).resolve().parents]
        if any(place.samefile(folder) for folder in inside):
            raise SaffuError(f"{out} is also an input ({source}) and would be lost; choose another output")


def facts_of_model(folder: Path) -> dict[str, Any]:
    """What config.json says of the model in a folder, or of an export; empty if the folder holds neither."""
    manifest = folder / "config.json"
    try:
        document = json.loads(manifest.read_bytes()) if manifest.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and str(document.get("model_type")).startswith("saffu") else {}


def keep_permissions(old: Path, fresh: Path) -> None:
    """Give a new file or folder the owner and the mode of the one that it replaces, or of the folder that it is in."""
    state = old.stat()
    if hasattr(os, "chown"):
        with suppress(PermissionError):
            os.chown(fresh, -1, state.st_gid)
        with suppress(PermissionError):
            os.chown(fresh, state.st_uid, -1)
    mode = stat.S_IMODE(state.st_mode)
    fresh.chmod(mode if fresh.is_dir() or not old.is_dir() else mode & 0o666)  # last: a change of owner clears bits


def remove(path: Path, meaning: str) -> None:
    """Remove a file or folder of our own; if that fails, say what is left and where."""
    for _ in range(2):  # a failure may pass
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        if not os.path.lexists(path):
            return
    warn(f"{path}, {meaning}, could not be removed; remove it yourself")


@contextmanager
def uninterrupted(once: bool = False) -> Iterator[list[int]]:
    """Put off Ctrl-C, SIGTERM, and SIGHUP to the end of steps that belong together; the list receives what arrives.

    With `once`, for longer work, a second signal of a kind takes effect at once. Signals that are ignored stay so.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # which is the only one that is interrupted
        yield arrived
        return
    handlers = {int(number): signal.getsignal(number) for number in ENDING}
    usual = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def put_off(number: int, _: Any) -> None:
        arrived.append(number)
        if once:
            signal.signal(number, usual[number])

    for number in usual:
        signal.signal(number, put_off)
    try:
        yield arrived
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def is_stream(path: Path) -> bool:
    """Whether a path is a pipe or a character device such as /dev/stdout."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
