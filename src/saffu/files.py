"""Files: atomic replacement of whole folders, checksums, safetensors and JSON. Nothing else is ever read back."""

import ctypes
import glob
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from saffu import lock
from saffu.errors import SaffuError

FORMAT = 1  # of the model folder; raised when an older saffu could not read it
MANIFEST = "config.json"
OLD = "-old"  # ends the name of a folder that has been moved aside


def require_writable(folder: Path, force: bool) -> None:
    """Fail now rather than after the work: on a folder that holds something, or a place that cannot be written."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise SaffuError(f"{folder} is a file, and a model is a folder; choose another place")
    if os.path.ismount(folder):  # Path.is_mount knows no Windows before Python 3.12
        raise SaffuError(f"{folder} cannot be replaced as a whole; name a folder inside it")
    if folder.exists() and any(folder.iterdir()):
        if not force:
            raise SaffuError(f"{folder} is not empty; choose another folder, or replace it with `force`")
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
    with lock.exclusive(folder, wait=True):
        recover(folder)
        _replace(folder, manifest, files)


@contextmanager
def changing(folder: Path, wait: bool) -> Iterator[None]:
    """Be the only one who changes a model folder that exists, from reading it to writing it."""
    if not Path(folder).resolve().parent.is_dir():
        read_manifest(folder)  # which tells what is wrong
    with lock.exclusive(folder, wait):
        recover(folder)
        yield


def recover(folder: Path) -> None:
    """Clean up after writers that were killed; to be called with the folder's lock.

    Where two folders cannot be swapped in one step there is a moment without any; the old one is then put back.
    """
    folder = Path(folder).resolve()
    for left in sorted(folder.parent.glob(f".{glob.escape(folder.name)}.writing-*")):
        if left.name.endswith(OLD) and not folder.exists():
            left.rename(folder)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _replace(folder: Path, manifest: Mapping[str, Any], files: Mapping[str, bytes | Callable[[], bytes]]) -> None:
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
        if "auto_map" in document and "checksums" not in document:  # saved by transformers, which records none
            files = [path for name in ("model.safetensors", "tokenizer.json") if (path := folder / name).is_file()]
            document["checksums"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
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
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return bytes(safetensors.save(whole, metadata={"format": "pt"}))  # as transformers writes it


def narrowed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same with matrices in float16: half the room. Vectors, which are small, stay as they are."""
    return {name: weight.half() if weight.dim() > 1 else weight for name, weight in weights.items()}


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
    aside = fresh.with_name(fresh.name + OLD)
    folder.rename(aside)
    fresh.rename(folder)
    aside.rename(fresh)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
