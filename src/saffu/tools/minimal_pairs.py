"""Minimal pairs: does a model prefer the acceptable sentence of each pair? (BLiMP, and the sets BabyLM adds to it.)

The score of a sentence is the sum of its tokens' log-probabilities at the start of a document, without the `<eod>`
after it, as evaluation harnesses do, or with it. If only a part is scored, the text before it is its context. A tie
counts as half correct, so that a model without a preference scores 50%.

A model with a network is also judged by what it adds to its counts, ln p − ½ ln p_counted, because counts prefer
frequent words and phrases whether or not a sentence is grammatical. (SLOR, Pauls & Klein 2012, subtracts the
log-probability of a unigram model for the same reason.)
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saffu.errors import SaffuError
from saffu.interface import Floats, Model
from saffu.text.corpus import TokenCorpus
from saffu.text.sources import find_files
from saffu.text.tokenizer import EOD, Tokenizer

if TYPE_CHECKING:
    from saffu.calibrated.ngrams import NgramCounts

TIE = 1e-5  # nats: a smaller difference may be rounding
COUNTED_SHARE = 0.5  # of the counts' log-probability that is subtracted from the model's
OWN_PAIRS = Path(__file__).with_name("own_pairs.jsonl")  # made by the repository's lab/own_pairs.py
SUFFIXES = ("jsonl", "json", "jsonl.gz", "json.gz")

LAYOUTS = {
    "BLiMP": ("sentence_good", "sentence_bad"),
    "EWoK": ("Context1", "Target1", "Target2"),
    "COMPS": ("prefix_acceptable", "prefix_unacceptable", "property_phrase"),
}
"""The fields of each kind of file. EWoK: two targets after one context; COMPS: one phrase after two prefixes."""


@dataclass(frozen=True)
class Pair:
    """Two texts, the first of them acceptable, and the context of each."""

    good: str
    bad: str
    before_good: str = ""
    before_bad: str = ""


@dataclass(frozen=True)
class PairScore:
    """How often the acceptable text was preferred."""

    pairs: int
    right: int
    ties: int

    @property
    def accuracy(self) -> float:
        """Fraction of all pairs; a tie counts as half."""
        return (self.right + self.ties / 2) / self.pairs

    @property
    def strict_accuracy(self) -> float:
        """Fraction of all pairs; a tie counts as wrong, as in some evaluation harnesses."""
        return self.right / self.pairs

    @property
    def tie_rate(self) -> float:
        return self.ties / self.pairs

    @classmethod
    def of(cls, log_probabilities: Floats) -> PairScore:
        """From log-probabilities (pairs, 2): the acceptable text, the other text.

        >>> PairScore.of(np.array([[-1.0, -2.0], [-2.0, -1.0], [-3.0, -3.0]]))
        PairScore(pairs=3, right=1, ties=1)
        """
        margin = log_probabilities[:, 0] - log_probabilities[:, 1]
        ties = np.abs(margin) < TIE
        return cls(len(margin), int((~ties & (margin > 0)).sum()), int(ties.sum()))


def find_pairs(patterns: Sequence[str | Path]) -> list[Path]:
    """The files named by paths, folders (all JSON Lines inside), and globs."""
    files: list[str | Path] = []
    for pattern in patterns:
        if not str(pattern) or not Path(pattern).is_dir():
            files.append(pattern)
            continue
        inside = [path for suffix in SUFFIXES for path in Path(pattern).rglob(f"*.{suffix}") if path.is_file()]
        if not inside:
            raise SaffuError(f"no .jsonl or .json file in the folder {pattern}; name the files instead")
        files += inside
    return find_files(files)


def read_pairs(path: Path) -> list[Pair]:
    """Read the pairs of a JSON Lines file with the fields of one of the `LAYOUTS`."""
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SaffuError(f"{path} is damaged or not a gzip file ({error}); download or compress it again") from None
    pairs = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise SaffuError(f"{path}, line {number}: invalid JSON; expected one object per line") from None
            pairs.append(_pair(record, f"{path}, line {number}"))
    if not pairs:
        raise SaffuError(f"{path} has no pairs; expected one JSON object per line")
    return pairs


def own_pairs() -> dict[str, list[Pair]]:
    """The 400 pairs that come with saffu, 40 of each phenomenon.

    >>> pair = own_pairs()["islands of coordination"][0]
    >>> pair.good, pair.bad
    ('Who did the man see the dog with?', 'Who did the man see the dog and?')
    """
    pairs: dict[str, list[Pair]] = {}
    for line in OWN_PAIRS.read_text("utf-8").splitlines():
        record = json.loads(line)
        pairs.setdefault(record["phenomenon"], []).append(Pair(record["sentence_good"], record["sentence_bad"]))
    return pairs


def _pair(record: Any, where: str) -> Pair:
    """The pair in one record."""
    if not isinstance(record, dict):
        raise SaffuError(f"{where}: not a JSON object; expected the fields {' and '.join(LAYOUTS['BLiMP'])}")
    matching = [fields for fields in LAYOUTS.values() if any(name in record for name in fields)]
    fields = matching[0] if matching else LAYOUTS["BLiMP"]
    for name in fields:
        if name not in record:
            raise SaffuError(f"{where}: the field {name!r} is missing; expected {', '.join(fields)}")
        if not isinstance(record[name], str) or not record[name].strip():
            raise SaffuError(f"{where}: the field {name!r} has no text; every field needs some")
        if any("\ud800" <= character <= "\udfff" for character in record[name]):
            raise SaffuError(f"{where}: the field {name!r} has half a surrogate pair; use valid Unicode")
    if "sentence_good" in fields:
        return Pair(record["sentence_good"], record["sentence_bad"])
    if "Context1" in fields:
        before = record["Context1"].rstrip()
        return Pair(" " + record["Target1"].lstrip(), " " + record["Target2"].lstrip(), before, before)
    phrase = " " + record["property_phrase"].lstrip()
    return Pair(phrase, phrase, record["prefix_acceptable"].rstrip(), record["prefix_unacceptable"].rstrip())


class PairCorpus:
    """Both texts of many pairs as one tokenized corpus, and which of its targets are scored."""

    def __init__(self, pairs: Iterable[Pair], tokenizer: Tokenizer, score_eos: bool = False) -> None:
        sides = [side for pair in pairs for side in ((pair.before_good, pair.good), (pair.before_bad, pair.bad))]
        contexts = tokenizer.encode_batch([before for before, _ in sides])
        texts = tokenizer.encode_batch([text for _, text in sides])
        documents = [[*before, *ids, EOD] for before, ids in zip(contexts, texts, strict=True)]
        scored = [
            [False] * len(before) + [True] * len(ids) + [score_eos] for before, ids in zip(contexts, texts, strict=True)
        ]
        starts = np.cumsum([0, *(len(document) for document in documents)], dtype=np.int64)
        sizes = np.array([len((before + text).encode()) + 1 for before, text in sides], dtype=np.int64)
        self.corpus = TokenCorpus(np.array([token for ids in documents for token in ids], np.int32), starts, sizes)
        self.scored = np.array([flag for flags in scored for flag in flags], dtype=bool)  # (targets,)

    def sums(self, values: Floats) -> Floats:
        """Values of every target (targets,), summed over the scored ones of each text: (pairs, 2)."""
        return np.asarray(np.add.reduceat(np.where(self.scored, values, 0.0), self.corpus.starts[:-1]).reshape(-1, 2))


def evaluate_pairs(
    model: Model,
    tokenizer: Tokenizer,
    files: Sequence[Path],
    references: NgramCounts | None = None,
    score_eos: bool = False,
) -> list[dict[str, Any]]:
    """Return, for each file, the pairs, tokens scored, accuracy, and tie rate of the model and, if counted, a trigram.

    Without files, the pairs of `own_pairs` are used. The two sides of a model with a network are evaluated, too, and
    what it says beyond its counts.
    """
    read = {str(path): read_pairs(path) for path in files} if files else own_pairs()
    corpus = PairCorpus((pair for pairs in read.values() for pair in pairs), tokenizer, score_eos)
    parts = model.scores_by_part(corpus.corpus, "score")
    scores = {f"{name}_" if name else "": corpus.sums(log_p) for name, log_p in parts.items()}
    if "network_" in scores:
        scores["beyond_counts_"] = scores[""] - COUNTED_SHARE * scores["counted_"]
    if references is not None:
        from saffu.calibrated.kneser_ney import KneserNey

        trigram = KneserNey(references, min(3, references.order))
        scores["trigram_"] = corpus.sums(trigram.log_probabilities(corpus.corpus))
    tokens = corpus.sums(np.ones(corpus.corpus.targets))
    rows = []
    first = 0
    for name, pairs in read.items():
        part = slice(first, first + len(pairs))
        first += len(pairs)
        row: dict[str, Any] = {"file": name, "pairs": len(pairs), "tokens": int(tokens[part].sum())}
        for prefix, sums in scores.items():
            row |= _facts(prefix, PairScore.of(sums[part]))
        rows.append(row)
    return rows


def overall(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All pairs together, and the mean of the files' accuracies, which weights every phenomenon equally."""
    facts: dict[str, Any] = {name: sum(row[name] for row in rows) for name in ("pairs", "tokens")}
    for prefix in [name.removesuffix("right") for name in rows[0] if name.endswith("right")]:
        right, ties = (sum(row[prefix + name] for row in rows) for name in ("right", "ties"))
        facts |= _facts(prefix, PairScore(facts["pairs"], right, ties))
        facts[f"{prefix}mean_accuracy"] = sum(row[f"{prefix}accuracy"] for row in rows) / len(rows)
    return facts


def _facts(prefix: str, score: PairScore) -> dict[str, Any]:
    names = ("right", "ties", "accuracy", "strict_accuracy", "tie_rate")
    return {prefix + name: getattr(score, name) for name in names}
