"""Minimal pairs: does a model prefer the acceptable sentence of each pair? (BLiMP, and the sets BabyLM adds to it.)

A sentence's score is the sum of its tokens' log-probabilities, in float64, at the start of a document; without the
`<eod>` after it, as evaluation harnesses count, or with it. If only a part is to be scored, what goes before it is
given. A tie is half right: taking the first candidate of a tie for right would reward a model that tells nothing.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from saffu.corpus import TokenCorpus
from saffu.errors import SaffuError
from saffu.network import Network
from saffu.ngram import KneserNey, context_windows
from saffu.product import Product
from saffu.text import find_files
from saffu.tokenizer import EOD, Tokenizer

if TYPE_CHECKING:
    from saffu.model import SaffuLM

Floats = npt.NDArray[np.float64]
TIE = 1e-5  # nats: what is closer is told apart by rounding alone
SUFFIXES = ("jsonl", "json", "jsonl.gz", "json.gz")

LAYOUTS = {
    "BLiMP": ("sentence_good", "sentence_bad"),
    "EWoK": ("Context1", "Target1", "Target2"),
    "COMPS": ("prefix_acceptable", "prefix_unacceptable", "property_phrase"),
}
"""The fields of each kind of file. EWoK: both targets after the first context; COMPS: one phrase after two prefixes."""


@dataclass(frozen=True)
class Pair:
    """Two texts, the first of them acceptable, and what goes before each."""

    good: str
    bad: str
    before_good: str = ""
    before_bad: str = ""


@dataclass(frozen=True)
class PairScore:
    """How often the acceptable one was preferred."""

    pairs: int
    right: int
    ties: int

    @property
    def accuracy(self) -> float:
        """Of all pairs, a tie counted as half."""
        return (self.right + self.ties / 2) / self.pairs

    @property
    def tie_rate(self) -> float:
        return self.ties / self.pairs

    @classmethod
    def of(cls, log_probabilities: Floats) -> "PairScore":
        """From the log-probabilities (pairs, 2) of the acceptable and of the other ones."""
        margin = log_probabilities[:, 0] - log_probabilities[:, 1]
        ties = np.abs(margin) < TIE
        return cls(len(margin), int((~ties & (margin > 0)).sum()), int(ties.sum()))


def find_pairs(patterns: Sequence[str | Path]) -> list[Path]:
    """The files that paths, folders (all JSON lines inside) and globs name."""
    files: list[str | Path] = []
    for pattern in patterns:
        if not Path(pattern).is_dir():
            files.append(pattern)
            continue
        inside = [path for suffix in SUFFIXES for path in Path(pattern).rglob(f"*.{suffix}") if path.is_file()]
        if not inside:
            raise SaffuError(f"no .jsonl or .json file in the folder {pattern}; name the files instead")
        files += inside
    return find_files(files)


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file of JSON lines, in the fields of one of the `LAYOUTS`."""
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SaffuError(f"{path} is damaged or no gzip file ({error}); fetch or compress it again") from None
    pairs = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                raise SaffuError(f"{path}, line {number} is no JSON; give one object a line") from None
            pairs.append(pair_of(record, f"{path}, line {number}"))
    if not pairs:
        raise SaffuError(f"{path} holds no pairs; give one JSON object a line")
    return pairs


def pair_of(record: Any, where: str) -> Pair:
    """The pair in one record."""
    if not isinstance(record, dict):
        raise SaffuError(f"{where} is no JSON object; give one with the fields {' and '.join(LAYOUTS['BLiMP'])}")
    begun = [fields for fields in LAYOUTS.values() if any(name in record for name in fields)]
    fields = begun[0] if begun else LAYOUTS["BLiMP"]
    for name in fields:
        if name not in record:
            raise SaffuError(f"{where} has no field {name!r}; give {', '.join(fields)}")
        if not isinstance(record[name], str) or not record[name].strip():
            raise SaffuError(f"{where} has no text in the field {name!r}; give some")
        if any("\ud800" <= character <= "\udfff" for character in record[name]):
            raise SaffuError(f"{where} has half a character in the field {name!r}; give valid Unicode")
    if "sentence_good" in fields:
        return Pair(record["sentence_good"], record["sentence_bad"])
    if "Context1" in fields:
        before = record["Context1"].rstrip()
        return Pair(" " + record["Target1"].lstrip(), " " + record["Target2"].lstrip(), before, before)
    phrase = " " + record["property_phrase"].lstrip()
    return Pair(phrase, phrase, record["prefix_acceptable"].rstrip(), record["prefix_unacceptable"].rstrip())


class PairCorpus:
    """Both sides of many pairs as one tokenised corpus, and which of its targets are to be summed."""

    def __init__(self, pairs: Iterable[Pair], tokenizer: Tokenizer, end: bool = False):
        texts, befores = [], []
        for pair in pairs:
            texts += [pair.good, pair.bad]
            befores += [pair.before_good, pair.before_bad]
        given = tokenizer.encode_batch(befores)
        scored = tokenizer.encode_batch(texts)
        documents = [[*before, *ids, EOD] for before, ids in zip(given, scored, strict=True)]
        lengths = torch.tensor([len(document) for document in documents])
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        ids = torch.tensor([token for document in documents for token in document])
        self.corpus = TokenCorpus(ids, starts, torch.zeros_like(lengths))
        self.document = torch.arange(len(documents)).repeat_interleave(lengths)  # of each target
        position = torch.arange(len(ids)) - starts[self.document]
        self.counts = position >= torch.tensor([len(before) for before in given])[self.document]
        if not end:
            self.counts &= position < (lengths - 1)[self.document]
        self.tokens = int(self.counts.sum())

    def sums(self, log_probabilities: torch.Tensor) -> Floats:
        """Log-probabilities of every target, summed over each side of each pair: (pairs, 2)."""
        summed = torch.zeros(self.corpus.documents, dtype=torch.float64)
        summed.index_add_(0, self.document, torch.where(self.counts, log_probabilities.double(), 0.0))
        return np.asarray(summed.view(-1, 2).numpy())

    def by_network(self, network: Network | Product) -> Floats:
        """By a model. A token that two texts reach by the same way is predicted once."""
        first = torch.from_numpy(first_of_their_kind(self.corpus))
        needed = torch.zeros(len(first), dtype=torch.bool)
        needed[first[self.counts]] = True
        scores = torch.zeros(len(first), dtype=torch.float64)
        with_documents = isinstance(network, Network) and network.config.documents
        lo = 0
        bar = tqdm(total=len(first), desc="score", unit=" tokens", unit_scale=True, leave=False, disable=None)
        with torch.inference_mode(), bar:
            for targets in self.corpus.to(network.device).batches(2 * network.batch_size(), network.lookback):
                flat = torch.arange(lo, lo + len(targets.ids))
                lo += len(flat)
                new = needed[flat].to(network.device)
                inputs = network.document_inputs(targets)[new] if with_documents else None  # type: ignore[union-attr]
                chosen = targets._replace(
                    ids=targets.ids[new],
                    positions=targets.positions[new],
                    documents=targets.documents[new],
                    at=targets.at[new],
                )
                if len(chosen.ids):
                    log_p = torch.log_softmax(network(chosen, inputs), dim=1).gather(1, chosen.ids[:, None]).squeeze(1)
                    scores[flat[new.cpu()]] = log_p.double().cpu()
                bar.update(len(flat))
        return self.sums(scores[first])

    def by_ngrams(self, model: KneserNey) -> Floats:
        """By an n-gram model."""
        ids, starts, scores = self.corpus.ids, self.corpus.starts, []
        for lo in range(0, len(ids), 1 << 16):
            hi = min(lo + (1 << 16), len(ids))
            contexts = context_windows(ids, starts, lo, hi, model.order - 1)
            scores.append(model.log_probabilities(contexts, ids[lo:hi]))
        return self.sums(torch.cat(scores))


def first_of_their_kind(corpus: TokenCorpus) -> npt.NDArray[np.int64]:
    """For each target, the place of the first one that is the same token after the same tokens.

    The documents "a b c" and "a b d" → [0, 1, 2, 3(<eod>), 0, 1, 6, 7]
    """
    ids, starts = corpus.ids.numpy().astype(np.int64), corpus.starts.numpy()
    begins, lengths = starts[:-1], np.diff(starts)
    kind = np.zeros(len(begins), dtype=np.int64)  # documents that are alike so far have the same number
    first, vocabulary = np.zeros(len(ids), dtype=np.int64), int(ids.max(initial=0)) + 1
    for position in range(int(lengths.max(initial=0))):
        alive = np.flatnonzero(lengths > position)
        places = begins[alive] + position
        _, earliest, same = np.unique(kind[alive] * vocabulary + ids[places], return_index=True, return_inverse=True)
        first[places] = places[earliest][same]
        kind[alive] = same
    return first


def evaluate_pairs(lm: "SaffuLM", files: Sequence[Path], end: bool = False) -> list[dict[str, Any]]:
    """For each file: pairs, tokens scored, accuracy and tie rate; of the model and, if it keeps one, of its trigram."""
    read = [read_pairs(path) for path in files]
    corpus = PairCorpus((pair for pairs in read for pair in pairs), lm.tokenizer_, end)
    scores = {"": corpus.by_network(lm.network_)}
    if lm.references_ is not None:
        scores["trigram_"] = corpus.by_ngrams(KneserNey(lm.references_, min(3, lm.references_.order)))
    tokens = torch.zeros(corpus.corpus.documents, dtype=torch.int64).index_add_(
        0, corpus.document, corpus.counts.long()
    )
    facts, first = [], 0
    for path, pairs in zip(files, read, strict=True):
        rows = slice(first, first + len(pairs))
        first += len(pairs)
        row = {"file": str(path), "pairs": len(pairs), "tokens": int(tokens.view(-1, 2)[rows].sum())}
        for name, sums in scores.items():
            score = PairScore.of(sums[rows])
            row |= {f"{name}right": score.right, f"{name}ties": score.ties, f"{name}accuracy": score.accuracy}
            row |= {f"{name}tie_rate": score.tie_rate}
        facts.append(row)
    return facts


def overall(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All pairs together, and the mean of the files' accuracies, which weighs every phenomenon alike."""
    facts: dict[str, Any] = {name: sum(row[name] for row in rows) for name in ("pairs", "tokens")}
    for prefix in ("", "trigram_"):
        if f"{prefix}right" in rows[0]:
            right, ties = (sum(row[prefix + name] for row in rows) for name in ("right", "ties"))
            score = PairScore(facts["pairs"], right, ties)
            facts |= {f"{prefix}right": right, f"{prefix}ties": ties, f"{prefix}accuracy": score.accuracy}
            facts |= {f"{prefix}tie_rate": score.tie_rate}
            facts[f"{prefix}mean_accuracy"] = sum(row[f"{prefix}accuracy"] for row in rows) / len(rows)
    return facts
