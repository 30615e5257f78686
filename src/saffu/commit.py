"""A folder is a commit: readers find the old version or the new one, whole, whatever happens to the writer.

Files are named by their content (`model-0123456789abcdef.safetensors`) and written next to those of the old version,
so none ever changes. Replacing the manifest, config.json, is the only commit. What no manifest names is swept
afterward, or by the next writer. A reader whose file has gone reads the new manifest (`read_folder`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from saffu.errors import SaffuError
from saffu.files import FORMAT, MANIFEST, checksum, manifest_digest, open_regular, read_manifest, require_plain
from saffu.writing import FRESH, Content, facts_of_model, keep_permissions, locked, remove, write_durably

T = TypeVar("T")
DIGITS = 16  # of a checksum, in the name of a file
committed: list[Path] = []  # folders whose new version this process has made, for the message of a later failure
OURS = re.compile(rf"[a-z]+-[0-9a-f]{{{DIGITS}}}(\.\w+)?|\.[^/]+\.{FRESH}")


def commit(folder: Path, facts: Mapping[str, Any], contents: Mapping[str, Content]) -> None:
    """Make these facts and files, by their plain names, the new version of a folder."""
    folder = Path(folder).resolve()
    for name in contents:
        require_plain(name)
    require_writable(folder, force=True)
    with locked(folder, wait=True):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            checksums = {}
            for name, content in contents.items():
                fresh = _fresh(folder, name)
                digest = write_durably(fresh, content)
                checksums[stored_name(name, digest)] = digest
                _keep(fresh, folder / stored_name(name, digest), digest)
            _sync(folder)  # so that no manifest names a file that a power failure takes away
            fresh = _fresh(folder, MANIFEST)
            write_durably(fresh, manifest_of(facts, checksums))
            fresh.replace(folder / MANIFEST)
            committed.append(folder)
            _sync(folder)
        finally:
            _sweep(folder)  # down to the version that is now named, whichever it is
            with suppress(OSError):  # because it holds files, unless the first version failed
                folder.rmdir()


def export(folder: Path, facts: Mapping[str, Any], contents: Mapping[str, Content]) -> None:
    """Write a folder whose files have the names that other programs expect. To replace one is not atomic."""
    folder = Path(folder).resolve()
    for name in contents:
        require_plain(name)
    require_exportable(folder, force=True)
    fresh = folder.with_name(f".{folder.name}.writing-{uuid4().hex[:12]}")
    aside = fresh.with_name(f"{fresh.name}-old")
    with locked(folder, wait=True):
        try:
            fresh.mkdir(parents=True)
            if folder.exists():
                keep_permissions(folder, fresh)
            checksums = {name: write_durably(fresh / name, content) for name, content in contents.items()}
            write_durably(fresh / MANIFEST, manifest_of(facts, checksums))
            if folder.exists():
                folder.rename(aside)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            if folder.exists():
                shutil.rmtree(aside, ignore_errors=True)


def manifest_of(facts: Mapping[str, Any], checksums: Mapping[str, str]) -> bytes:
    """Return config.json: the facts, the format's version, and the checksum of every file, itself included."""
    document = json.loads(
        json.dumps({"format": FORMAT, "model_type": "saffu", **facts, "checksums": checksums})
    )  # as it is read back
    document["checksums"][MANIFEST] = manifest_digest(document)
    return (json.dumps(document, indent=2) + "\n").encode()


def stored_name(name: str, digest: str) -> str:
    """Return the name of a file with this content.

    >>> stored_name("log.jsonl", "0123456789abcdef0123")
    'log-0123456789abcdef.jsonl'
    """
    stem, dot, ending = name.partition(".")
    return f"{stem}-{digest[:DIGITS]}{dot}{ending}"


def _fresh(folder: Path, name: str) -> Path:
    return folder / f".{name}.writing-{uuid4().hex[:12]}"


def _keep(fresh: Path, path: Path, digest: str) -> None:
    """Give a new file its name, unless a file with this content has it."""
    with suppress(SaffuError), open_regular(path) as file:
        if checksum(file) == digest:
            fresh.unlink()
            return
    fresh.replace(path)


def _sweep(folder: Path) -> None:
    """Remove what no manifest names; if that fails, say so, because it may hold what was forgotten."""
    for path in leftovers(folder):
        if os.name == "posix":
            remove(path, "which no version needs")
            continue
        with suppress(OSError):  # Windows does not remove what is being read; the next writer will
            path.unlink()


def _sync(folder: Path) -> None:
    if os.name != "posix":
        return
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that does not sync folders
            raise
    finally:
        os.close(directory)


def leftovers(folder: Path) -> list[Path]:
    """Return the files of ours in a folder that its manifest does not name: left by writers that were killed."""
    recorded = facts_of_model(folder).get("checksums")
    named = recorded if isinstance(recorded, dict) else ()
    return [path for path in sorted(folder.iterdir()) if OURS.fullmatch(path.name) and path.name not in named]


def read_folder(folder: Path, read: Callable[[dict[str, Any]], T]) -> T:
    """Return what `read` makes of the manifest and its files; read again if the folder has a new version meanwhile."""
    while True:
        manifest = read_manifest(folder)
        try:
            return read(manifest)
        except SaffuError:
            if read_manifest(folder) == manifest:
                raise


def require_writable(folder: Path, force: bool) -> None:
    """Fail before the work rather than after it if a model cannot be written here."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise SaffuError(f"{folder} is a file; a model needs a folder")
    place = next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if not os.access(place, os.W_OK):
        raise SaffuError(f"{place} is write-protected; change its permissions first, or choose another folder")
    if place != folder.resolve() or not (others := set(folder.iterdir()) - set(leftovers(folder))):
        return
    if not force:
        raise SaffuError(f"{folder} is not empty; choose another folder, or replace it with `force`")
    facts = facts_of_model(folder)
    if "auto_map" in facts:
        raise SaffuError(f"will not replace {folder}: it is an export; remove it first, or choose another folder")
    if not facts or not (folder / MANIFEST).is_file() or (folder / MANIFEST).is_symlink():
        name = min(path.name for path in others)
        raise SaffuError(f"will not replace {folder}: it is not a saved model, but holds {name!r}; move it first")


def require_exportable(folder: Path, force: bool) -> None:
    """Fail before the work rather than after it if an export cannot be written here.

    An export is replaced as a whole, so everything in it must be as it was written. A name is not proof: config.json
    must list the files next to it. Arrays may be damaged, but a model card that was edited is not ours any more.
    """
    folder = Path(folder)
    place = folder.resolve()
    if not folder.is_dir() or not any(folder.iterdir()):
        require_writable(folder, force)
        return
    if not force:
        raise SaffuError(f"{folder} is not empty; choose another folder, or replace it with `force`")
    if Path.cwd().is_relative_to(place) or os.path.ismount(folder):
        raise SaffuError(f"{folder} cannot be replaced as a whole; name a folder inside it")
    if not os.access(place, os.W_OK):
        raise SaffuError(f"{folder} is write-protected; change its permissions first, or choose another folder")
    recorded = facts_of_model(folder).get("checksums")
    if not isinstance(recorded, dict) or MANIFEST not in recorded:
        name = min(path.name for path in folder.iterdir())
        raise SaffuError(f"will not replace {folder}: it is not a saved model, but holds {name!r}; move it first")
    for path in sorted(folder.iterdir()):
        if path.name not in recorded or not stat.S_ISREG(path.lstat().st_mode):
            raise SaffuError(f"will not replace {folder}: {path.name!r} is not part of an export; move it first")
        if path.suffix != ".safetensors" and path.name != MANIFEST:
            with open_regular(path) as file:
                if checksum(file) != recorded[path.name]:
                    raise SaffuError(f"will not replace {folder}: {path.name!r} was changed; move it first")


@contextmanager
def changing(folder: Path, wait: bool) -> Iterator[None]:
    """Lock a model folder against other writers, from reading it to writing its new version."""
    if not Path(folder).resolve().parent.is_dir():
        read_manifest(folder)  # raises the error that fits
    if Path(folder).is_dir() and not os.access(folder, os.W_OK):
        raise SaffuError(f"{folder} is write-protected; change its permissions first, or choose another folder")
    with locked(folder, wait):
        if Path(folder).is_dir():
            _sweep(folder)  # also if the change is then refused, because a killed one was complete
        yield
