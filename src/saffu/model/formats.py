"""Folders of older formats, read as if they had been written today.

`saffu.files.FORMAT` numbers the format of model folders. It is raised when a file changes its meaning, and then
`MIGRATIONS` gets an entry here, under the number that it reads: nothing else knows of older formats. Every release
reads the folders of all formats from `saffu.files.OLDEST_FORMAT` on; tests/golden holds folders of each release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.views import MEMORY_EVIDENCE, View, memory_parts, memory_slices, unfitted_exponents, views_array
from saffu.files import FORMAT
from saffu.interface import Array

Manifest = dict[str, Any]
Arrays = dict[str, Array]

GATE = "trained.gate.weight"


@dataclass(frozen=True)
class Migration:
    """From one format to the next."""

    manifest: Callable[[Manifest], Manifest]  # what config.json says
    arrays: Callable[[Manifest, Arrays], Arrays]  # the arrays of a file, given config.json


def with_radius_padding(manifest: Manifest) -> Manifest:
    """Format 2 did not say how a radius is filled: from the target backward, as `radius_padding` left."""
    settings = manifest["settings"]
    if "radius" in settings:
        settings = {"radius_padding": "left", **settings}
    return manifest | {"settings": settings}


def with_document_memory(manifest: Manifest, arrays: Arrays) -> Arrays:
    """Format 3: the recency cache of 0.2.0 became the memory of a document; its exponents have to be learned."""
    old = [name for name in arrays if name.endswith(("encoder.cached", "encoder.trust"))]
    kept = {name: array for name, array in arrays.items() if name not in old}
    kept = with_gate_input(kept)  # the age of a document
    if not old:
        return kept
    config = CalibratedConfig(word_classes=manifest["settings"]["word_classes"])
    return kept | {old[0].rpartition(".")[0] + ".memory": unfitted_exponents(config)}


def with_gate_input(arrays: Arrays) -> Arrays:
    """Arrays whose gates, if there are any, see something more, with a weight of zero."""
    if GATE not in arrays:
        return arrays
    weights = arrays[GATE]  # ([K,] inputs)
    return arrays | {GATE: np.concatenate([weights, np.zeros_like(weights[..., :1])], axis=-1)}


def with_views(manifest: Manifest, arrays: Arrays) -> Arrays:
    """Format 4 says which views a counted model has; before, they followed from its settings."""
    outputs = next((name for name in arrays if name.endswith("encoder.output_classes")), None)
    if outputs is None:
        return arrays
    return arrays | {outputs.replace("output_classes", "views"): views_array(views_of_format_3(manifest["settings"]))}


def views_of_format_3(settings: Mapping[str, Any]) -> list[View]:
    """The views that followed from settings, whatever `views_of` adds in the meantime."""
    nearest = tuple(range(1, settings["order"]))
    fine = settings["word_classes"]
    coarse = fine // 5
    views = [View(f"slot {k}", (k,)) for k in range(1, settings["slots"] + 1)]
    views.append(View("memory", nearest))
    if fine:
        views.append(View(f"memory of {fine} classes", nearest[: max(1, len(nearest) - 1)], fine))
    if coarse > 1:
        views.append(View(f"memory of {coarse} classes", nearest, coarse))
        if len(nearest) > 1:
            views.append(View(f"nearest token and {coarse} classes", nearest, coarse, exact=1))
    return views


def with_longest_match(manifest: Manifest, arrays: Arrays) -> Arrays:
    """Format 5: the memory of a document follows its longest match, with an exponent of zero until one is learned."""
    name = next((name for name in arrays if name.endswith("encoder.memory")), None)
    if name is None:
        return arrays
    config = CalibratedConfig(word_classes=manifest["settings"]["word_classes"])
    match = memory_slices(config)[1 + memory_parts(config).index("document, longest match")]
    exponents = memory_slices(config)[-1].stop - MEMORY_EVIDENCE
    if arrays[name].shape[1] != exponents:  # made from format 2, which has no memory
        return arrays
    return arrays | {name: np.insert(arrays[name], [match.start] * MEMORY_EVIDENCE, 0.0, axis=1)}


def with_ngram_names(manifest: Manifest, arrays: Arrays) -> Arrays:
    """Format 6 calls the views of the nearest tokens n-grams; before, they were memories, as was that of a document."""
    views = {name: array for name, array in arrays.items() if name.endswith("encoder.views")}
    renamed = {name: with_ngrams_in_json(array.tobytes().decode()).encode() for name, array in views.items()}
    return arrays | {name: np.frombuffer(stored, dtype=np.uint8) for name, stored in renamed.items()}


def with_youth(manifest: Manifest, arrays: Arrays) -> Arrays:
    """Format 7: gates see whether a document has only begun."""
    return with_gate_input(arrays)


def with_ngrams_in_json(text: str) -> str:
    """JSON in which the views have these names; quotes within texts, which are escaped, are left alone.

    >>> print(with_ngrams_in_json('{"memory of 300 classes": 1, "memory": 2, "sample": "the \\\\"memory\\\\""}'))
    {"n-grams (300 classes)": 1, "n-grams": 2, "sample": "the \\"memory\\""}
    """
    classes = re.sub(r'(?<!\\)"memory of (\d+ classes)"', r'"n-grams (\1)"', text)
    return re.sub(r'(?<!\\)"memory"', '"n-grams"', classes)


MIGRATIONS: dict[int, Migration] = {  # by the format they read
    2: Migration(with_radius_padding, with_document_memory),
    3: Migration(dict, with_views),
    4: Migration(dict, with_longest_match),
    5: Migration(dict, with_ngram_names),
    6: Migration(dict, with_youth),
}


def migrated_manifest(manifest: Mapping[str, Any]) -> Manifest:
    """What config.json would say in today's format."""
    today = dict(manifest)
    for number in range(today["format"], FORMAT):
        today = MIGRATIONS[number].manifest(today) | {"format": number + 1}
    return today


def migrated_log(manifest: Mapping[str, Any], text: str) -> str:
    """What log.jsonl would say in today's format; `manifest` is config.json as it was written."""
    return with_ngrams_in_json(text) if manifest["format"] < 6 else text


def migrated_arrays(manifest: Mapping[str, Any], arrays: Arrays) -> Arrays:
    """What a file would hold in today's format; `manifest` is config.json as it was written."""
    document = dict(manifest)
    for number in range(document["format"], FORMAT):
        arrays = MIGRATIONS[number].arrays(document, arrays)
        document = MIGRATIONS[number].manifest(document) | {"format": number + 1}
    return arrays
