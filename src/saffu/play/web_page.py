"""A page without a server: the counted model in one file, solved and asked by the kernels, compiled to WebAssembly.

The file holds the counts, from which the tables follow, because they are a seventh of the size. What does not follow
from counts (classes, exponents, the shape of the memory) is laid out here as kernels with addresses of 32 bits read it,
so that the page's scripts need not know about it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from saffu.calibrated import kernels
from saffu.calibrated.kneser_ney import Table
from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.reading import NativeModel, initial_learning
from saffu.calibrated.views import HALF_LIVES, memory_contexts, memory_parts
from saffu.errors import SaffuError
from saffu.files import Content, write_folder
from saffu.interface import Array
from saffu.model import living
from saffu.model.folder import require_export
from saffu.model.language_model import SaffuLM
from saffu.play.texts import beginnings
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import WordTokenizer

KERNELS, MODEL = "kernels.wasm", "model.saffu"
CODE = files("saffu.play") / "web" / KERNELS
LONGEST = 1 << 17  # tokens of a text that is typed
ALIGNMENT = 16  # bytes
POINTER = ctypes.c_uint32  # of WebAssembly
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)
NO_KERNELS = (
    "this installation has no kernels for browsers; install clang and its libraries for wasm32 (Debian: apt install "
    "clang lld libc++-dev-wasm32 libclang-rt-dev-wasm32), then install saffu from source, which compiles them"
)


def export_web(lm: SaffuLM, folder: Path, name: str, counted: TokenCorpus | None = None) -> None:
    """Write a folder of static files that shows a model; with its `counted` documents, if the page may show them."""
    require_export(folder)
    if not CODE.is_file():
        raise SaffuError(NO_KERNELS)
    content: dict[str, Content] = {**page_files(), KERNELS: CODE.read_bytes(), MODEL: page_arrays(lm, name, counted)}
    write_folder(folder, {"model_type": "saffu-web", "name": name}, content)


def page_files() -> dict[str, bytes]:
    """The page of `saffu play`, whose script asks a worker in place of the server."""
    data: dict[str, bytes] = {}
    for package in ("static", "web"):
        data |= {part.name: part.read_bytes() for part in (files("saffu.play") / package).iterdir() if part.is_file()}
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    icon = f"data:image/svg+xml,{quote(data.pop('icon.svg').decode())}"  # or browsers ask for it again and again
    page = data["index.html"].decode()
    changes = {'<html lang="en">': '<html lang="en" class="static">', "<head>": f"<head>\n  {policy}", "icon.svg": icon}
    for old, new in changes.items():
        if page.count(old) != 1:
            raise ValueError(f"index.html must have one {old}")
        page = page.replace(old, new)
    return data | {"index.html": page.encode()}


def page_arrays(lm: SaffuLM, name: str, counted: TokenCorpus | None) -> dict[str, Array]:
    """The content of the model's file."""
    model = counted_model(lm)
    ranks = model.ranks
    image = Image(model.native)
    about = {
        "name": name,
        "settings": model.config.to_dict(),
        "vocabulary": model.vocabulary,
        "classes": ranks.number,
        "views": [asdict(view) | {"is_slot": view.is_slot} for view in model.views],
        "memory_parts": memory_parts(model.config),
        "contexts": [asdict(context) for context in memory_contexts(model.config)] if model.config.cache else [],
        "half_lives": len(HALF_LIVES),
        "learned": 2 * model.encoder.memory.size if model.config.cache else 0,
        "longest": LONGEST,
        "fields": {each.__name__: offsets(each) for each in (kernels.Model, kernels.View, kernels.Level)},
        "view_at": image.address(model.native.views),
        "merges": json.loads(lm.tokenizer_.to_json())["model"]["merges"],
        "trained_on": lm.trained_on_,
        "examples": [] if counted is None else beginnings(list(texts_of(lm, counted))),
        "fingerprint": hashlib.sha256("".join(living.fingerprints(lm).values()).encode()).hexdigest(),
    }
    about["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in about["merges"]]
    arrays = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "structure": np.frombuffer(bytes(image.data), dtype=np.uint8),
        "relocations": np.array(image.relocations, dtype=np.uint32),
        "rank": ranks.ranks,
        "token_of_rank": ranks.tokens,
        "class_of_rank": ranks.classes,
        "class_first": ranks.first,
        "output_classes": model.encoder.output_classes,
        "learned": initial_learning(model.encoder.memory),
        **{f"context_classes.{number}": classes for number, classes in model.encoder.context_classes.items()},
        **model.sums.arrays(),  # type: ignore[union-attr]
    }
    if counted is not None:
        arrays["documents"] = np.ascontiguousarray(counted.ids, dtype=np.uint16)
        arrays["document_starts"] = counted.starts.astype(np.uint32)
    return arrays


def counted_model(lm: SaffuLM) -> CalibratedModel:
    """The part of a model that a page can show."""
    model: CalibratedModel | None = lm.model_.counted_part
    if model is None or model.sums is None:
        raise SaffuError("only a counted model with its counts can become a page; train one with the counted preset")
    if isinstance(lm.tokenizer_, WordTokenizer):
        raise SaffuError("models of words cannot become a page; train without --words-as-tokens")
    return model


def texts_of(lm: SaffuLM, corpus: TokenCorpus) -> Iterator[str]:
    for begin, end in zip(corpus.starts[:-1].tolist(), corpus.starts[1:].tolist(), strict=True):
        yield lm.tokenizer_.decode(corpus.ids[begin:end].tolist())


def on_page(field: Any) -> Any:
    """The type of a field where addresses have 32 bits."""
    if field is ctypes.c_void_p or issubclass(field, ctypes._Pointer):
        return POINTER
    if issubclass(field, ctypes.Array):
        return on_page(field._type_) * field._length_
    if issubclass(field, ctypes.Structure):
        fields = [(name, on_page(kind)) for name, kind, *_ in field._fields_]
        return type(field.__name__, (ctypes.Structure,), {"_fields_": fields})
    return field


def offsets(structure: type[ctypes.Structure]) -> dict[str, int]:
    """Where the fields of a structure are, and its size."""
    there = on_page(structure)
    return {name: getattr(there, name).offset for name, _ in there._fields_} | {"size": ctypes.sizeof(there)}


class Image:
    """The structure that kernels read, and what it points to, as bytes; what follows from counts is left out."""

    def __init__(self, native: NativeModel) -> None:
        self.data = bytearray()
        self.relocations: list[int] = []  # places of addresses, which are relative to the image
        self.places: dict[int, int] = {}  # of what is in the image, by its address here
        self.arrays = {
            array.ctypes.data: array for array in arrays_in([native.structure.kept, native.structure.exponents])
        }
        structures = [native.views, *(each for each in native.structure.kept if isinstance(each, ctypes.Array))]
        self.structures = {ctypes.addressof(each): each for each in structures}
        self.skip = {
            kernels.Model: {"prior", "class_prior", "log_prior", "log_class_prior"},
            kernels.View: {"unigram", "class_unigram", "level"},
        }
        self.add(native.structure)

    def address(self, structure: Any) -> int:
        return self.places[ctypes.addressof(structure)]

    def reserve(self, size: int) -> int:
        self.data += bytes(-len(self.data) % ALIGNMENT)
        self.data += bytes(size)
        return len(self.data) - size

    def add(self, structure: Any) -> int:
        """Put a structure, or an array of structures, into the image; its place there."""
        here = ctypes.addressof(structure)
        if here not in self.places:
            self.places[here] = self.reserve(ctypes.sizeof(on_page(type(structure))))
            self.fill(structure, self.places[here])
        return self.places[here]

    def fill(self, value: Any, place: int) -> None:
        if isinstance(value, ctypes.Array):
            step = ctypes.sizeof(on_page(value._type_))
            for number in range(len(value)):
                self.fill_field(value._type_, value[number], place + number * step)
            return
        there = on_page(type(value))
        skip = self.skip.get(type(value), set())
        for name, kind, *_ in value._fields_:
            if name not in skip:
                self.fill_field(kind, getattr(value, name), place + getattr(there, name).offset)

    def fill_field(self, kind: Any, value: Any, place: int) -> None:
        if issubclass(kind, ctypes.Structure | ctypes.Array):
            self.fill(value, place)
        elif kind is ctypes.c_void_p or issubclass(kind, ctypes._Pointer):
            address = value if kind is ctypes.c_void_p else ctypes.cast(value, ctypes.c_void_p).value
            if address:
                self.write(POINTER(self.target(address)), place)
                self.relocations.append(place)
        else:
            self.write(kind(value), place)

    def target(self, address: int) -> int:
        """The place of what an address points to."""
        if address in self.structures:
            return self.add(self.structures[address])
        if address not in self.places:
            array = self.arrays[address]
            self.places[address] = self.reserve(array.nbytes)
            self.data[self.places[address] : self.places[address] + array.nbytes] = array.tobytes()
        return self.places[address]

    def write(self, value: Any, place: int) -> None:
        self.data[place : place + ctypes.sizeof(value)] = bytes(value)


def arrays_in(kept: Any) -> Iterator[Array]:
    """All arrays in nested lists and dictionaries."""
    if isinstance(kept, np.ndarray):
        yield kept
        if kept.ndim == 2 and len(kept) == 2:  # of classes and of tokens
            yield from kept
    elif isinstance(kept, Mapping):
        for each in kept.values():
            yield from arrays_in(each)
    elif isinstance(kept, list | tuple):
        for each in kept:
            yield from arrays_in(each)
    elif isinstance(kept, Table):
        yield kept._distances
