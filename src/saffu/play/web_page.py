"""A page without a server: the counted model in one file, solved and asked by the kernels, compiled to WebAssembly.

The file holds the counts, from which the tables follow, because they are a seventh of the size. What does not follow
from counts (classes, exponents, how memories are made) is put before the kernels as in the library, array by array.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import numpy as np

from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.reading import initial_learning
from saffu.calibrated.views import HALF_LIVES, memory_contexts, memory_parts
from saffu.commit import export
from saffu.errors import SaffuError
from saffu.files import Content
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
    export(folder, {"model_type": "saffu-web", "name": name}, content)


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
    given = {
        name: array
        for name, array in model.kernel_arrays().items()
        if name != "frequencies" and (not name.startswith("table ") or name.endswith(".distances"))
    }
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
        "given": [*given],
        "merges": json.loads(lm.tokenizer_.to_json())["model"]["merges"],
        "trained_on": lm.trained_on_,
        "examples": [] if counted is None else beginnings(list(texts_of(lm, counted))),
        "fingerprint": hashlib.sha256("".join(living.fingerprints(lm).values()).encode()).hexdigest(),
    }
    about["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in about["merges"]]
    arrays = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "rank": ranks.ranks,
        "token_of_rank": ranks.tokens,
        "class_of_rank": ranks.classes,
        "class_first": ranks.first,
        "learned": initial_learning(model.encoder.memory),
        **given,
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
