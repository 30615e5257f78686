"""Folders of older formats, read as if they had been written today.

`saffu.files.FORMAT` numbers the format of model folders. It is raised when a file changes its meaning, and then
`MIGRATIONS` gets an entry here, under the number that it reads: nothing else knows of older formats. Every release
reads the folders of all formats from `saffu.files.OLDEST_FORMAT` on; tests/golden holds folders of each release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.memory import unfitted_exponents
from saffu.files import FORMAT
from saffu.interface import Array

Manifest = dict[str, Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Migration:
    """From one format to the next."""

    manifest: Callable[[Manifest], Manifest]  # what config.json says
    arrays: Callable[[Manifest, str, Arrays], Arrays]  # the arrays of a file, given config.json and the file's name


def with_radius_padding(manifest: Manifest) -> Manifest:
    """Format 2 did not say how a radius is filled: from the target backward, as `radius_padding` left."""
    settings = manifest["settings"]
    if manifest["preset"] == "paper":
        settings = {"radius_padding": "left", **settings}
    return manifest | {"settings": settings}


def with_document_memory(manifest: Manifest, file: str, arrays: Arrays) -> Arrays:
    """Format 3: the recency cache of 0.2.0 became the memory of a document; its exponents have to be learned."""
    old = [name for name in arrays if name.endswith(("encoder.cached", "encoder.trust"))]
    kept = {name: array for name, array in arrays.items() if name not in old}
    if not old:
        return kept
    config = CalibratedConfig(word_classes=manifest["settings"]["word_classes"])
    return kept | {old[0].rpartition(".")[0] + ".memory": unfitted_exponents(config)}


MIGRATIONS: dict[int, Migration] = {2: Migration(with_radius_padding, with_document_memory)}  # by the format they read


def migrated_manifest(manifest: Mapping[str, Any]) -> Manifest:
    """What config.json would say in today's format."""
    today = dict(manifest)
    for number in range(today["format"], FORMAT):
        today = MIGRATIONS[number].manifest(today) | {"format": number + 1}
    return today


def migrated_arrays(manifest: Mapping[str, Any], file: str, arrays: Arrays) -> Arrays:
    """What a file would hold in today's format; `manifest` is config.json as it was written."""
    document = dict(manifest)
    for number in range(document["format"], FORMAT):
        arrays = MIGRATIONS[number].arrays(document, file, arrays)
        document = MIGRATIONS[number].manifest(document) | {"format": number + 1}
    return arrays
