"""Files: atomic replacement of whole folders, checksums, safetensors and JSON. Nothing else is ever read back."""

import ctypes
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from saffu.errors import SaffuError

FORMAT = 1  # of the model folder; raised when an older saffu could not read it
MANIFEST = "config.json"


def require_writable(folder: Path, force: bool) -> None:
    """Fail now rather than after the work: on a folder that holds something, or a place that cannot be written."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise SaffuError(f"{folder} is a file, and a model is a folder; choose another --out")
    if folder.is_mount():
        raise SaffuError(f"{folder} cannot be replaced as a whole; name a folder inside it as --out")
    if folder.exists() and any(folder.iterdir()):
        if not force:
            raise SaffuError(f"{folder} is not empty; choose another --out, or --force to replace it")
        foreign = {path.name for path in folder.iterdir()} - {MANIFEST, *_recorded_names(folder)}
        if foreign:
            raise SaffuError(f"{folder} holds {min(foreign)!r}, which is none of a model's files; move it away first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.writing-", dir=folder.parent):
        pass


def write_folder(folder: Path, manifest: Mapping[str, Any], files: Mapping[str, bytes | Callable[[], bytes]]) -> None:
    """Write a folder anew, whole: a reader, or a kill at any moment, finds the old one or the new one.

    The manifest goes into config.json together with the format's version and a checksum of every file.
    """
    folder = Path(folder).resolve()  # a link stays a link to the folder that is replaced
    require_writable(folder, force=True)
    for left in folder.parent.glob(f".{folder.name}.writing-*"):
        if left.lstat().st_mtime < time.time() - 3600:  # by a run that was killed, not by one at work now
            shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.writing-", dir=folder.parent))
    try:
        checksums = {}
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content()
            _write_durably(fresh / name, data)
            checksums[name] = hashlib.sha256(data).hexdigest()
        document = {"format": FORMAT, **manifest, "checksums": checksums}
        _write_durably(fresh / MANIFEST, (json.dumps(document, indent=2) + "\n").encode())
        fresh.chmod(0o777 & ~_umask())
        if folder.exists():
            _exchange(fresh, folder)
        else:
            fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # what was there before, or what was left half written


def write_file(path: Path, data: bytes) -> None:
    """Write one file anew, whole: a reader, or a kill at any moment, finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        _write_durably(fresh, data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """config.json of a model folder, of a format this saffu knows."""
    folder = Path(folder)
    if not folder.is_dir():
        raise SaffuError(f"no model folder at {folder}; `saffu train … --out {folder}` makes one")
    try:
        document = json.loads((folder / MANIFEST).read_text("utf-8"))
        version, recorded = document["format"], document["checksums"].items()
    except FileNotFoundError:
        raise SaffuError(f"{folder} is no model folder: it has no {MANIFEST}; check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SaffuError(f"{folder / MANIFEST} is damaged; restore the folder or train again") from None
    if not isinstance(version, int) or not all(isinstance(checksum, str) for _, checksum in recorded):
        raise SaffuError(f"{folder / MANIFEST} is damaged; restore the folder or train again")
    if version > FORMAT:
        raise SaffuError(f"{folder} has format {version}, newer than this saffu's {FORMAT}; upgrade saffu to read it")
    return dict(document)


def _recorded_names(folder: Path) -> set[str]:
    """The files that a model folder's manifest names; none if it has no manifest."""
    try:
        return set(read_manifest(folder)["checksums"])
    except SaffuError:
        return set()


def read_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """A file of a model folder, if its checksum is right."""
    path = Path(folder) / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SaffuError(f"{path} is missing; restore the folder or train again") from None
    if hashlib.sha256(data).hexdigest() != manifest.get("checksums", {}).get(name):
        raise SaffuError(f"{path} is damaged: its checksum is wrong; restore the folder or train again")
    return data


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    return bytes(safetensors.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def from_safetensors(data: bytes, what: str) -> dict[str, Tensor]:
    try:
        return dict(safetensors.load(data))
    except SafetensorError as error:
        raise SaffuError(f"{what} is damaged ({error}); restore the folder or train again") from None


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _exchange(fresh: Path, folder: Path) -> None:
    """Swap two folders in one step where the system can (Linux), else in two."""
    if sys.platform == "linux":
        at_cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename and rename(at_cwd, os.fsencode(fresh), at_cwd, os.fsencode(folder), exchange) == 0:
            return
    aside = fresh.with_name(fresh.name + "-old")
    folder.rename(aside)
    fresh.rename(folder)
    aside.rename(fresh)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
