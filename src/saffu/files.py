"""Files and folders: replaced atomically, verified by checksums, locked while they change."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from saffu.arrays import RESTORE, Array, checksum, open_regular, read_at_most
from saffu.arrays import load_arrays as load_arrays
from saffu.arrays import map_arrays as map_arrays
from saffu.errors import SaffuError
from saffu.writing import Content as Content
from saffu.writing import exchange, keep_permissions, locked, recover, remove, uninterrupted, write_durably, written
from saffu.writing import write_file as write_file

FORMAT = 5  # of a model folder; raised when the files change their meaning (see saffu.model.formats)
OLDEST_FORMAT = 2  # that can be read
MANIFEST = "config.json"
LARGEST_MANIFEST = 100_000_000  # bytes
LARGEST_FILE = 1 << 30  # bytes, of a file that does not hold arrays


def require_writable(folder: Path, force: bool) -> None:
    """Fail before the work rather than after it if a model folder cannot be written here."""
    folder = Path(folder)
    place = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise SaffuError(f"{folder} is a file; a model needs a folder")
    with suppress(FileNotFoundError):  # the current folder may have been deleted
        if Path.cwd().is_relative_to(place):
            raise SaffuError(f"{place} is the current folder and cannot be replaced; name a folder inside it")
    if os.path.ismount(folder):  # Path.is_mount does not support Windows before Python 3.12
        raise SaffuError(f"{folder} cannot be replaced as a whole; name a folder inside it")
    if folder.exists() and any(folder.iterdir()):
        if not force:
            raise SaffuError(f"{folder} is not empty; choose another folder, or replace it with `force`")
        _require_permission(folder)
        _require_ours(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    with uninterrupted():
        remove(Path(tempfile.mkdtemp(prefix=f".{place.name}.writing-", dir=place.parent)), "which is empty")


def write_folder(folder: Path, manifest: Mapping[str, Any], files: Mapping[str, Content]) -> None:
    """Replace a folder atomically: a reader, or a crash at any point, sees either the old version or the new one.

    The manifest goes into config.json, with the format's version and the checksum of every file, itself included.
    """
    folder = Path(folder).resolve()  # a link stays a link to the folder that is replaced
    for name in files:
        _require_plain(name)
    require_writable(folder, force=True)
    with locked(folder, wait=True):
        recover(folder)
        _replace(folder, manifest, files)


@contextmanager
def changing(folder: Path, wait: bool) -> Iterator[None]:
    """Lock an existing model folder against other writers, from reading it to replacing it."""
    if not Path(folder).resolve().parent.is_dir():
        read_manifest(folder)  # raises the error that fits
    _require_permission(folder)
    with locked(folder, wait):
        recover(folder)
        yield


def _replace(folder: Path, manifest: Mapping[str, Any], files: Mapping[str, Content]) -> None:
    fresh = None
    try:
        with uninterrupted():
            fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.writing-", dir=folder.parent))
        checksums = {name: write_durably(fresh / name, content) for name, content in files.items()}
        document = json.loads(json.dumps({"format": FORMAT, **manifest, "checksums": checksums}))  # as it is read back
        document["checksums"][MANIFEST] = _digest(document)
        write_durably(fresh / MANIFEST, (json.dumps(document, indent=2) + "\n").encode())
        _permit(fresh, folder)
        with uninterrupted():
            if folder.exists():
                exchange(fresh, folder)
            else:
                fresh.rename(folder)
            written.append(folder)
            remove(fresh, "the previous version")
            fresh = None
    finally:
        if fresh is not None:
            with uninterrupted():
                remove(fresh, "which is half written")


def _permit(fresh: Path, folder: Path) -> None:
    """Give a folder that is about to replace another one its permissions; those of a new one follow the umask."""
    if not folder.exists():
        fresh.chmod(0o777 & ~_umask())
        return
    for path in fresh.iterdir():
        old = next((old for old in (folder / path.name, folder / MANIFEST) if old.is_file()), None)
        if old:
            keep_permissions(old, path)
    keep_permissions(folder, fresh)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read config.json of a model folder, after verifying its checksum and its format."""
    folder = Path(folder)
    path = folder / MANIFEST
    if folder.is_file():
        raise SaffuError(f"{folder} is a file, not a model folder; pass a folder that saffu has written")
    if not folder.is_dir():
        raise SaffuError(f"no model in {folder}; create one with `saffu train … --out {folder}`")
    if not path.exists():
        raise SaffuError(f"{folder} is not a model folder (no {MANIFEST}); check the path")
    document = _read_document(path)
    version = document.get("format")
    recorded = document.get("checksums")
    if "auto_map" in document and recorded is None:  # saved by transformers, which records no checksums
        known = ("model.safetensors", "references.safetensors", "tokenizer.json", "log.jsonl")
        names = [name for name in known if (folder / name).is_file()]
        recorded = document["checksums"] = {name: _checksum_of(folder / name) for name in names}
        recorded[MANIFEST] = _digest(document)
    if not isinstance(version, int) or not isinstance(recorded, dict):
        raise SaffuError(f"{path} is damaged; {RESTORE}")
    if version < OLDEST_FORMAT:
        raise SaffuError(f"{folder} was written by an older saffu (format {version}); train it again")
    if version > FORMAT:
        raise SaffuError(f"{folder} has format {version}, newer than this saffu's {FORMAT}; upgrade saffu to read it")
    if recorded.get(MANIFEST) != _digest(document):
        raise SaffuError(f"{path} is damaged or was edited: its checksum does not match; {RESTORE}")
    return document


def read_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """Read a file of a model folder after verifying its checksum."""
    path, expected = _recorded(folder, name, manifest)
    with open_regular(path) as file:
        data = read_at_most(file, LARGEST_FILE, path)
    if hashlib.sha256(data).hexdigest() != expected:
        raise SaffuError(f"{path} is damaged: its checksum does not match; {RESTORE}")
    return data


def read_arrays(folder: Path, name: str, manifest: Mapping[str, Any]) -> dict[str, Array]:
    """Read the arrays of a model folder's safetensors file into memory after verifying its checksum."""
    path, expected = _recorded(folder, name, manifest)
    return load_arrays(path, expected)


def _recorded(folder: Path, name: str, manifest: Mapping[str, Any]) -> tuple[Path, str]:
    """The path of a file and the checksum that its manifest records."""
    _require_plain(name)
    path = Path(folder) / name
    if name not in manifest.get("checksums", {}):
        raise SaffuError(f"{path} is not recorded in {MANIFEST}; {RESTORE}")
    return path, str(manifest["checksums"][name])


def _require_plain(name: str) -> None:
    if name != Path(name).name or name in ("", "..", MANIFEST) or "\\" in name:
        raise SaffuError(f"{name!r} is not the name of a file in a model folder; use a plain name")


def _read_document(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        data = read_at_most(file, LARGEST_MANIFEST, path)
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        raise SaffuError(f"{path} is damaged; {RESTORE}") from None


def _checksum_of(path: Path) -> str:
    with open_regular(path) as file:
        return checksum(file)


def _digest(document: Mapping[str, Any]) -> str:
    """The checksum of a manifest: of everything it says except this checksum itself."""
    others = {name: entry for name, entry in document["checksums"].items() if name != MANIFEST}
    return hashlib.sha256(json.dumps({**document, "checksums": others}, sort_keys=True).encode()).hexdigest()


def _require_ours(folder: Path) -> None:
    """Fail unless saffu wrote all of a folder. A name is not proof: config.json must list the files next to it.

    Arrays may be damaged, but other files that were changed since are not ours any more: a model card, for example.
    """
    refused = f"will not replace {folder}:"
    try:
        document = _read_document(folder / MANIFEST)
    except SaffuError:
        document = {}
    recorded = document.get("checksums")
    if not (isinstance(document.get("format"), int) and isinstance(recorded, dict) and MANIFEST in recorded):
        name = min(path.name for path in folder.iterdir())
        raise SaffuError(f"{refused} it is not a saved model, but holds {name!r}; move it first")
    for path in sorted(folder.iterdir()):
        if path.name not in recorded or path.is_dir() or not stat.S_ISREG(path.lstat().st_mode):
            raise SaffuError(f"{refused} {path.name!r} is not part of a saved model; move it first")
        changed = path.suffix != ".safetensors" and path.name != MANIFEST
        if changed and _checksum_of(path) != recorded[path.name]:
            raise SaffuError(f"{refused} {path.name!r} was changed after saffu wrote it; move it first")


def _require_permission(folder: Path) -> None:
    """Fail if a folder is write-protected. Whoever may write to its parent could still replace it, but not clean up."""
    if Path(folder).is_dir() and not os.access(folder, os.W_OK):
        raise SaffuError(f"{folder} is write-protected; change its permissions first, or choose another folder")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
