"""The folder in which a run on a cluster keeps finished work, so that the same command continues from there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import saffu
from saffu.cluster.engine import Lost, keep
from saffu.errors import SaffuError
from saffu.files import checksum
from saffu.text.sources import Source

JOB = "job.json"


@contextmanager
def work_folder(out: Path, job: Mapping[str, Any], kept: bool = False) -> Iterator[Path]:
    """A hidden folder next to the output, removed at the end or by an error that running again would only repeat.

    It is kept if the process is killed or interrupted, or if workers are lost; if `kept`, after any error. A later run
    with the same job continues with it; a run with another job starts over.
    """
    folder = place_of(out)
    if folder.exists() and not is_begun(out, job):
        if any(folder.iterdir()) and not (folder / JOB).is_file():
            raise SaffuError(f"{folder} is not the work of an earlier run; move it first")
        shutil.rmtree(folder)
    if not folder.exists():
        folder.mkdir(parents=True)
        keep(folder / JOB, named(job))
    try:
        yield folder
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; finished work is kept in {folder}; rerun the same command to continue"
        ) from None
    except SaffuError as error:
        if not (kept or isinstance(error, Lost)):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def is_begun(out: Path, job: Mapping[str, Any]) -> bool:
    """Whether a run with the same job was begun earlier and interrupted."""
    path = place_of(out) / JOB
    return path.is_file() and bool(json.loads(path.read_bytes()) == json.loads(json.dumps(named(job))))


def named(job: Mapping[str, Any]) -> dict[str, Any]:
    return {"saffu": saffu.__version__, **job}


def place_of(out: Path) -> Path:
    place = Path(out).resolve()
    return place.with_name(f".{place.name}.ray")


def described_sources(sources: Sequence[Source]) -> list[list[Any]]:
    """Facts that change if a file changes: size and modification time, or the checksum of text from a pipe."""
    facts: list[list[Any]] = []
    for source in sources:
        if source.spooled:
            with source.path.open("rb") as file:
                facts.append([source.name, checksum(file)])
        else:
            state = source.path.stat()
            facts.append([str(source.path.resolve()), state.st_size, state.st_mtime_ns])
    return facts


def shared_sources(sources: Sequence[Source], folder: Path) -> list[Source]:
    """Sources that nodes can open: text from a pipe is copied to the work folder."""
    shared = []
    for number, source in enumerate(sources):
        path = source.path.resolve()
        if source.spooled:
            path = folder / f"pipe-{number}"
            if not path.exists():
                shutil.copyfile(source.path, path)
        shared.append(Source(path, source.name, source.spooled))
    return shared
