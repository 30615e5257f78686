"""The model folder: a fitted model as config.json and its other files, and back.

    config.json             settings, sizes, and checksums of the other files
    model.safetensors       the model: everything needed to predict
    sums.safetensors        the counts that its decoder follows from; absent if it no longer does
    references.safetensors  token frequencies, and n-gram counts for the baselines
    ledger.safetensors      hashes of the documents counted; absent if they cannot change
    tokenizer.json          for the `tokenizers` library
    log.jsonl               one row per stage

Names on the disk end in a hash of the content (`saffu.commit`). Files that predicting does not need are opened when
they are first used. What config.json and the log say is validated before anything uses or prints it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu import files
from saffu.commit import commit, read_folder
from saffu.errors import SaffuError
from saffu.files import RESTORE, are_counts, part_of
from saffu.interface import Array
from saffu.model.ledger import Ledger
from saffu.model.solutions import solution
from saffu.settings import Settings
from saffu.text.corpus import SPLITS, TokenCorpus
from saffu.text.tokenizer import Tokenizer
from saffu.tools.evaluate import count_references

if TYPE_CHECKING:  # compiled kernels are loaded only where n-grams are used
    from saffu.calibrated.ngrams import NgramCounts
    from saffu.model.language_model import SaffuLM

MODEL, SUMS, REFERENCES = "model.safetensors", "sums.safetensors", "references.safetensors"
LEDGER, TOKENIZER, LOG = "ledger.safetensors", "tokenizer.json", "log.jsonl"
PARTS = (files.MANIFEST, MODEL, SUMS, REFERENCES, LEDGER, TOKENIZER, LOG)  # of a model; a folder may hold other files
MOST = 2**63 - 1  # of anything that is counted
LONGEST = 10_000  # characters of a text or entries of a list in the log
NUMBERS = ("seconds", "dev_perplexity", "dev_bits_per_byte", "tokens_per_second", "learning_rate", "train_perplexity")
COUNTS = ("documents", "parts", "tokens", "fold", "step", "steps", "shared", "models", "lines", "bytes")
LARGEST_VOCABULARY = 1 << 16  # of n-gram counts
NGRAMS = "ngrams."  # begins the names of stored n-gram counts
UNFIT = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError)
SIZES = ("documents", "parts", "lines", "tokens", "bytes")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over the training documents that no prediction needs, for the baselines; additive, like those of a model."""

    frequencies: Array  # (N,) int64: how often each token is a target
    ngrams: NgramCounts | None  # None if not requested, or if the model's own sums hold them

    @classmethod
    def of(cls, corpus: TokenCorpus, vocabulary: int, ngrams: bool) -> Statistics:
        """Count a corpus."""
        counts = count_references(corpus, vocabulary) if ngrams and vocabulary <= LARGEST_VOCABULARY else None
        return cls(corpus.frequencies(vocabulary), counts)

    def __add__(self, other: Statistics) -> Statistics:
        ngrams = None if self.ngrams is None or other.ngrams is None else self.ngrams + other.ngrams
        return Statistics(self.frequencies + other.frequencies, ngrams)

    def __sub__(self, other: Statistics) -> Statistics:
        ngrams = None if self.ngrams is None or other.ngrams is None else self.ngrams - other.ngrams
        return Statistics(self.frequencies - other.frequencies, ngrams)

    def arrays(self) -> dict[str, Array]:
        """What is stored, by name."""
        ngrams: Mapping[str, Any] = {} if self.ngrams is None else self.ngrams.arrays()
        return {"frequencies": self.frequencies, **{NGRAMS + name: array for name, array in ngrams.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], vocabulary: int) -> Statistics:
        """The inverse of `arrays`."""
        frequencies = arrays["frequencies"]
        if not are_counts(frequencies, vocabulary):
            raise SaffuError("the token frequencies are damaged; restore the folder or train again")
        ngrams = part_of(arrays, NGRAMS)
        if not ngrams:
            return cls(frequencies, None)
        from saffu.calibrated.ngrams import NgramCounts

        return cls(frequencies, NgramCounts.from_arrays(ngrams, vocabulary))


class ModelFolder:
    """An open model folder: its config.json, and its other files as they are needed."""

    def __init__(self, path: Path, check: bool, manifest: dict[str, Any]) -> None:
        """With `check`, files are read into memory and their checksums verified; otherwise they are memory-mapped."""
        self.path = path
        self.check = check or sys.platform == "win32"  # where a mapped file cannot be removed
        self.manifest = manifest

    def __contains__(self, name: str) -> bool:
        return files.holds(self.manifest, name)

    def arrays(self, name: str) -> dict[str, Array]:
        """The arrays of a safetensors file."""
        if self.check:
            return files.read_arrays(self.path, name, self.manifest)
        return files.map_arrays(files.path_of(self.path, name, self.manifest))

    @contextmanager
    def fitting(self, name: str) -> Iterator[None]:
        """Say that a file is damaged if what it holds does not fit."""
        try:
            yield
        except SaffuError:
            raise
        except UNFIT as error:
            raise SaffuError(f"{self.path / name} is damaged ({error}); {RESTORE}") from None

    def text(self, name: str) -> str:
        """A small file, always verified."""
        return files.read_file(self.path, name, self.manifest).decode()

    def learned(self, name: str) -> Any:
        """A learned attribute whose file is read when it is first used."""
        try:
            if name == "statistics_":
                with self.fitting(REFERENCES):
                    return Statistics.from_arrays(self.arrays(REFERENCES), int(self.manifest["vocabulary"]))
            with self.fitting(LEDGER):
                return Ledger.from_arrays(self.arrays(LEDGER)) if LEDGER in self else None
        except SaffuError:
            self.require_unchanged()
            raise

    def verify(self, skip: Container[str] = (files.MANIFEST,)) -> None:
        """Verify the checksum of every file, except those to `skip`."""
        try:
            for name in files.stored_names(self.manifest):
                if name not in skip:
                    files.verify(self.path, name, self.manifest)
        except SaffuError:
            self.require_unchanged()
            raise

    def require_unchanged(self) -> None:
        """Raise SaffuError if the folder has a new version, so that files of this one may be gone."""
        if files.read_manifest(self.path) != self.manifest:
            raise SaffuError(f"{self.path} was replaced after this model was loaded; load it again")


def write(
    lm: SaffuLM,
    path: Path,
    extra_files: Mapping[str, files.Content],
    extra_settings: Mapping[str, Any] | None = None,
    write_files: Callable[[Path, Mapping[str, Any], Mapping[str, files.Content]], None] = commit,
    compact: bool = False,
) -> None:
    """Write all of a model, `extra_files` next to it, and `extra_settings` into config.json.

    Of a `compact` folder, what follows from the counts is left out.
    """
    if compact and (lm.model_.counted_part is None or lm.model_.sums is None):
        raise SaffuError("only a counted model with its counts can be saved without its tables; omit `compact`")
    verify_and_load(lm)
    model = lm.model_
    statistics = lm.statistics_
    ledger = lm.ledger_
    manifest = {
        "preset": lm.config.preset,
        "settings": lm.config.to_dict(),
        "tokenizer": lm.tokenizer_settings_,
        "vocabulary": len(lm.tokenizer_),
        "parameters": model.size,
        "trained_on": lm.trained_on_,
        "source": lm.source_,
        **(extra_settings or {}),
    }
    tokenizer = lm.tokenizer_.to_json()
    try:
        manifest = json.loads(json.dumps(manifest))
        log = "".join(json.dumps(row) + "\n" for row in lm.log_)
        Facts.of(manifest, log, tokenizer)
    except UNFIT as error:
        raise SaffuError(f"this model could not be loaded again ({error}); correct its `source_` or `log_`") from None
    contents: dict[str, files.Content] = {
        MODEL: (lambda: without_tables(model.arrays())) if compact else model.arrays,
        TOKENIZER: tokenizer.encode(),
        REFERENCES: statistics.arrays,
        LOG: log.encode(),
    }
    if model.sums is not None:
        contents[SUMS] = model.sums.arrays
    if ledger is not None:
        contents[LEDGER] = ledger.arrays
    write_files(path, manifest, contents | dict(extra_files))


def without_tables(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return what a compact folder keeps of a model: what does not follow from its counts.

    >>> without_tables({"encoder.plain": 1, "counted.table 0.1.keys": 2})
    {'encoder.plain': 1}
    """
    return {name: array for name, array in arrays.items() if not name.removeprefix("counted.").startswith("table ")}


def require_export(folder: Path) -> None:
    """Fail if an export would replace a model that still has its counts."""
    if (folder / files.MANIFEST).exists() and files.holds(files.read_manifest(folder), SUMS):
        raise SaffuError(f"{folder} holds a model with its counts, which an export would lose; choose another folder")


def verify_and_load(lm: SaffuLM) -> None:
    """Before a model is changed or saved: verify the files it was loaded from, and read what has not been read yet."""
    if lm.folder is not None:
        if not lm.folder.check:
            lm.folder.verify()
        _ = lm.model_, lm.statistics_, lm.ledger_
        lm.folder = None


def read(kind: type[SaffuLM], path: Path, device: str, check: bool) -> SaffuLM:
    """The model that `write` wrote."""

    def opened(manifest: dict[str, Any]) -> SaffuLM:
        folder = ModelFolder(path, check, manifest)
        lm = _read(kind, folder, device)
        if check:
            folder.verify(skip=PARTS)
            verify_and_load(lm)
        return lm

    return read_folder(path, opened)


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model folder."""
    return read_folder(path, lambda manifest: Tokenizer.from_json(ModelFolder(path, True, manifest).text(TOKENIZER)))


@dataclass(frozen=True)
class Facts:
    """What a folder says of a model in words; whatever is saved was read like this before."""

    config: Settings
    tokenizer: Tokenizer
    tokenizer_settings: dict[str, Any]
    sizes: dict[str, int]
    source: dict[str, Any]
    log: list[dict[str, Any]]

    @classmethod
    def of(cls, manifest: Mapping[str, Any], log: str, tokenizer: str) -> Facts:
        """Read the contents of config.json, log.jsonl, and tokenizer.json. Raises SaffuError or one of UNFIT."""
        facts = cls(
            solution(manifest["preset"]).config.from_dict(dict(manifest["settings"])),
            Tokenizer.from_json(tokenizer),
            dict(manifest["tokenizer"]),
            trained_on_facts(manifest["trained_on"]),
            source_facts(manifest["source"]),
            log_facts(log),
        )
        if len(facts.tokenizer) != manifest["vocabulary"]:
            raise ValueError(f"it should have {manifest['vocabulary']} tokens, not {len(facts.tokenizer)}")
        return facts


def _read(kind: type[SaffuLM], folder: ModelFolder, device: str) -> SaffuLM:
    with folder.fitting(f"{files.MANIFEST} or {LOG}"):
        log = folder.text(LOG) if LOG in folder else ""
        facts = Facts.of(folder.manifest, log, folder.text(TOKENIZER))
    sums = folder.arrays(SUMS) if SUMS in folder else None
    with folder.fitting(MODEL):
        read_model = solution(facts.config.preset).from_arrays
        model = read_model(facts.config, len(facts.tokenizer), folder.arrays(MODEL), sums, device)
    lm = kind(facts.config, tokenizer=facts.tokenizer, device=device)
    lm.model_ = model
    lm.tokenizer_ = facts.tokenizer
    lm.tokenizer_settings_ = facts.tokenizer_settings
    lm.trained_on_ = facts.sizes
    lm.source_ = facts.source
    lm.log_ = facts.log
    lm.folder = folder
    return lm


def trained_on_facts(stored: Mapping[str, Any]) -> dict[str, int]:
    """The size of the text. Raises ValueError, KeyError, or TypeError if it is not one."""
    sizes = {name: _count(stored[name], name) for name in SIZES}
    if sizes["documents"] > sizes["parts"]:
        raise ValueError("documents without parts")
    return sizes


def source_facts(stored: Mapping[str, Any]) -> dict[str, Any]:
    """How the text was read. Raises ValueError or TypeError if that is not known; other entries are the user's own."""
    if not isinstance(stored, dict):
        raise TypeError("its source is not a dictionary")
    source = dict(stored)
    if source.get("split") not in (None, *SPLITS):
        raise ValueError("its text was split in an unknown way")
    if source.get("hold_out") is not None and _count(source["hold_out"], "hold_out") == 1:
        raise ValueError("all of its text was held out")
    for name in ("field", "dev"):
        if not isinstance(source.get(name), str | None):
            raise TypeError(f"{name} is not a text")
    return source


def log_facts(text: str) -> list[dict[str, Any]]:
    """The rows of log.jsonl. Raises ValueError or TypeError if it is not one."""
    rows = [dict(json.loads(line)) for line in text.split("\n") if line]
    for row in rows:
        if not isinstance(row.get("stage"), str):
            raise TypeError("a row without a stage")
        if ("dev_perplexity" in row) != ("dev_bits_per_byte" in row):
            raise ValueError("a row with half of its scores")
        for name, value in row.items():
            if name in COUNTS:
                _count(value, name)
            elif name in NUMBERS and (not isinstance(value, int | float) or isinstance(value, bool)):
                raise TypeError(f"{name} is not a number")
            elif name == "warnings" and not (isinstance(value, list) and all(isinstance(w, str) for w in value)):
                raise TypeError("warnings are not texts")
            _require_small(name, value, depth=3)
    return rows


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"{name} is not a count")
    return value


def _require_small(name: str, value: Any, depth: int) -> None:
    """Fail unless a value is a number or a text, or a list or mapping of them; none of them huge."""
    if isinstance(value, dict | list):
        if depth == 0 or len(value) > LONGEST:
            raise ValueError(f"{name[:40]} is too large")
        for entry in value.values() if isinstance(value, dict) else value:
            _require_small(name, entry, depth - 1)
    elif isinstance(value, int) and abs(value) > MOST:
        raise ValueError(f"{name[:40]} is too large")
    elif isinstance(value, str) and len(value) > LONGEST:
        raise ValueError(f"{name[:40]} is too long")
    elif isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{name[:40]} is not a number")
