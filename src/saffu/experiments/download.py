"""Download corpora from their official hosts, resuming partial downloads, and unpack them to train/, dev/, and test/.

Files keep their official names (`childes.train`, `childes.dev`). Folders that were unpacked by hand, in the official
layout, can be read too.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import struct
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from saffu.errors import SaffuError
from saffu.format import progress_bar
from saffu.writing import locked, remove, uninterrupted, write_durably

MANIFEST = "babylm.json"
UNPACKING = ".unpacking-babylm"  # a folder
ENCRYPTED = 1  # the flag of a member of a zip file
CORRUPT = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError, ValueError)
SPLITS = ("train", "dev", "test")
SIZES = ("10M", "100M")
TIMEOUT = 60  # seconds without a byte
CHUNK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """A zip file of the challenge, with its MD5 where one has been published."""

    name: str
    url: str
    md5: str = ""


SOURCES: dict[int, dict[str, Archive]] = {
    # One archive holds both sizes: babylm_data/babylm_10M, babylm_100M, babylm_dev, babylm_test.
    2023: {
        split: Archive("babylm_data.zip", "https://github.com/babylm/babylm.github.io/raw/main/babylm_data.zip")
        for split in ("train 10M", "train 100M", "dev", "test")
    },
    # The text_data folder of the challenge's project, https://osf.io/ad7qg/.
    2024: {
        "train 10M": Archive("train_10M.zip", "https://osf.io/download/5mk3x/", md5="dc67e5d2db96ed4f76cb072e2504a18c"),
        "train 100M": Archive("train_100M.zip", "https://osf.io/download/rduj2/"),
        "dev": Archive("dev.zip", "https://osf.io/download/m48ed/"),
        "test": Archive("test.zip", "https://osf.io/download/qj4a6/"),
    },
}
HOMES = {2023: "https://babylm.github.io", 2024: "https://osf.io/ad7qg/"}


def fetch_babylm(
    year: int,
    size: str,
    out: Path,
    *,
    accept_changed: bool = False,
    keep_archives: bool = False,
    sources: Mapping[int, Mapping[str, Archive]] | None = None,
) -> dict[str, Any]:
    """Download and unpack a year's corpus to out/train, out/dev, and out/test; returns the content of babylm.json.

    Archives that are in out/archives already, downloaded by hand or by an earlier run, are not downloaded again.
    """
    archives = (sources or SOURCES)[year]
    wanted = {split: archives[f"train {size}" if split == "train" else split] for split in SPLITS}
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, wait=False):
        manifest = read_manifest(out)
        if manifest and (manifest["year"], manifest["size"]) != (year, size):
            raise SaffuError(f"{out} holds BabyLM {manifest['year']} {manifest['size']}; choose another `out`")
        if manifest and all((out / split).is_dir() for split in SPLITS):
            return manifest
        for split in SPLITS:
            if not manifest and (out / split).exists():
                raise SaffuError(f"{out / split} already exists and is not from an earlier run; choose another `out`")
        folder = out / "archives"
        folder.mkdir(exist_ok=True)
        ours = [folder / archive.name for archive in wanted.values() if not (folder / archive.name).exists()]
        for archive in dict.fromkeys(wanted.values()):
            download(archive, folder / archive.name, HOMES[year])
        recorded = {a.name: verified(a, folder / a.name, accept_changed) for a in dict.fromkeys(wanted.values())}
        manifest = {"corpus": "BabyLM", "year": year, "size": size, "archives": recorded}
        manifest = unpack_splits(out, {split: folder / archive.name for split, archive in wanted.items()}, manifest)
        if not keep_archives:
            for path in ours:  # those downloaded by hand stay
                path.unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        return manifest


def unpack_splits(out: Path, archives: Mapping[str, Path], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Unpack each split from its archive, and record their files; all of them appear at the end."""
    scratch = out / UNPACKING
    remove(scratch, "left by a process that was killed")
    try:
        scratch.mkdir()
        files = {split: unpack(archive, split, manifest["size"], scratch) for split, archive in archives.items()}
        whole = {**manifest, "files": files}
        write_durably(scratch / MANIFEST, (json.dumps(whole, indent=2) + "\n").encode())
        (scratch / MANIFEST).replace(out / MANIFEST)  # from now on, the folders are ours
        for split in SPLITS:
            if not (out / split).exists():  # if a run was killed between two of them
                (scratch / split).rename(out / split)
    finally:
        with uninterrupted():
            remove(scratch, "which holds text that was unpacked")
    return whole


def download(archive: Archive, path: Path, home: str) -> None:
    """Download an archive; a partial download is resumed if the host supports it."""
    if path.exists():
        return
    part = path.with_name(path.name + ".part")
    tag = path.with_name(path.name + ".tag")
    have = part.stat().st_size if part.exists() else 0
    host = urlsplit(archive.url).netloc
    by_hand = f"or download {archive.url} by hand, save it as {path}, and rerun"
    try:
        with request(archive.url, have, tag.read_text("utf-8") if have and tag.exists() else "") as answer:
            resumes = answer.status == 206
            have = have if resumes else 0
            expected = have + int(answer.headers.get("Content-Length") or 0)
            tag.write_text(answer.headers.get("ETag") or "", encoding="utf-8")
            total = expected if expected > have else None
            with (
                part.open("ab" if resumes else "wb") as file,
                progress_bar(archive.name, total=total, unit="B", initial=have) as bar,
            ):
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    bar.update(len(chunk))
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to send: the file was complete, or has changed
            part.unlink()
            download(archive, path, home)
            return
        remedy = f"the file may have moved: see {home}, " if error.code in (403, 404, 410) else "try again later, "
        raise SaffuError(f"{host} answers {error.code} {error.reason} for {archive.name}; {remedy}{by_hand}") from None
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error or type(error).__name__
        raise SaffuError(
            f"cannot download {archive.name} from {host} ({reason}); check the network and rerun, {by_hand}"
        ) from None
    if expected > have and part.stat().st_size != expected:
        raise SaffuError(
            f"{host} closed the connection after {part.stat().st_size:,} of {expected:,} bytes of {archive.name}; "
            "rerun to resume"
        )
    part.replace(path)
    tag.unlink(missing_ok=True)


def request(url: str, have: int, tag: str) -> HTTPResponse:
    """Request a file, or the rest of it if the host still has the same one."""
    headers = {"User-Agent": "saffu"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag:
            headers["If-Range"] = tag
    answer: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    return answer


def verified(archive: Archive, path: Path, accept_changed: bool) -> dict[str, Any]:
    """What is recorded of a downloaded archive. Raises SaffuError if it is not the published one."""
    md5 = hashlib.md5(usedforsecurity=False)
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            md5.update(chunk)
            sha256.update(chunk)
    if archive.md5 and archive.md5 != md5.hexdigest() and not accept_changed:
        raise SaffuError(
            f"{path} has the MD5 {md5.hexdigest()}, not the published {archive.md5}; "
            "delete it and rerun, or accept it with `accept_changed`"
        )
    sizes = {"bytes": path.stat().st_size, "md5": md5.hexdigest(), "sha256": sha256.hexdigest()}
    return {"url": archive.url, **sizes}


def unpack(archive: Path, split: str, size: str, scratch: Path) -> dict[str, Any]:
    """Unpack the files of a split, and no others, to scratch/split under their own names."""
    folder = scratch / split
    files = {}
    folder.mkdir()
    try:
        with zipfile.ZipFile(archive) as zipped:
            for member in members(zipped, split, size):
                name = PurePosixPath(member.filename).name
                if (folder / name).exists():  # also where names differ only in case, and the file system ignores it
                    raise SaffuError(f"{archive} has two members called {name}; delete it and rerun")
                if member.flag_bits & ENCRYPTED:
                    raise SaffuError(f"{archive} is encrypted; unpack it by hand, or download another one")
                with zipped.open(member) as source, (folder / name).open("wb") as target:  # verifies its CRC
                    shutil.copyfileobj(source, target, CHUNK)
                files[name] = {"bytes": member.file_size}
    except SaffuError:
        raise
    except (*CORRUPT, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise SaffuError(f"{archive} is corrupt or not a zip file ({error}); delete it and rerun") from None
    if not files:
        raise SaffuError(f"{archive} has no .{split} files of {size}; check whether the archive has changed")
    return files


def members(zipped: zipfile.ZipFile, split: str, size: str) -> Iterator[zipfile.ZipInfo]:
    """The members of an archive that belong to a split: `babylm_10M/cbt.train`, `train_10M/childes.train`, …"""
    for member in zipped.infolist():
        path = PurePosixPath(member.filename.replace("\\", "/"))
        other = any(part.endswith(f"_{wrong}") for wrong in SIZES if wrong != size for part in path.parts[:-1])
        mine = split != "train" or not other
        if path.suffix == f".{split}" and mine and not path.name.startswith(".") and "__MACOSX" not in path.parts:
            yield member


def find_splits(folder: Path, size: str | None = None) -> dict[str, list[Path]]:
    """Find the files of train, dev, and test in a corpus folder.

    The folder may be one that `fetch_babylm` wrote, one that the challenge's archives unpack to (babylm_10M/*.train,
    dev/*.dev), or one with plain text in folders of these names (train/*.txt.gz).
    """
    if not folder.is_dir():
        raise SaffuError(f"no corpus in {folder}; create one with `saffu download babylm --out {folder}`")
    splits: dict[str, list[Path]] = {}
    for split in SPLITS:
        official = (path for path in folder.rglob(f"*.{split}") if "__MACOSX" not in path.relative_to(folder).parts)
        files = sorted(path for path in official if path.is_file())
        if not files:
            plain = (path for suffix in ("txt", "txt.gz") for path in (folder / split).rglob(f"*.{suffix}"))
            files = sorted(path for path in plain if path.is_file())
        if files:
            splits[split] = files
    if "train" not in splits or "dev" not in splits:
        raise SaffuError(
            f"{folder} has neither *.train and *.dev files nor train/*.txt and dev/*.txt; choose another folder"
        )
    by_size = {
        named: [p for p in splits["train"] if any(part.endswith(f"_{named}") for part in p.relative_to(folder).parts)]
        for named in SIZES
    }
    if all(by_size.values()) and size is None:
        raise SaffuError(f"{folder} has training text of both sizes; choose one with `size` {' or '.join(SIZES)}")
    if size and any(by_size.values()):
        if not by_size[size]:
            raise SaffuError(f"{folder} has no training text of {size}; choose another `size` or folder")
        splits["train"] = by_size[size]
    return splits


def read_manifest(out: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((out / MANIFEST).read_text("utf-8"))
        return {**manifest, "year": int(manifest["year"]), "size": str(manifest["size"])}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        raise SaffuError(f"{out / MANIFEST} is damaged; delete it and the folder's train, dev, and test") from None
