"""Whether a model folder is what it says it is: its files, its tables, its counts, its ledger, and its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from saffu.errors import SaffuError
from saffu.format import in_parts, plural
from saffu.interface import Array, Arrays
from saffu.model.living import statistics_of
from saffu.model.matching import Matches

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM
    from saffu.text.corpus import TokenCorpus


ROUNDING = 1e-5  # of sums in float32, as a share of the largest


@dataclass
class Findings:
    """What was verified, and what could not be."""

    verified: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_model(lm: SaffuLM, corpus: TokenCorpus | None = None) -> Findings:
    """Verify a model that was loaded with `check`, and that its counts are those of a corpus, if one is given.

    Raises SaffuError with the first thing that is wrong.
    """
    findings = Findings([f"all checksums match, and {plural(len(lm.model_.arrays()), 'array')} are well formed"])
    sums = lm.model_.sums
    if sums is None:
        findings.notes.append("it has no counts, so nothing else can be verified")
        if corpus is not None:
            raise SaffuError("this model has no counts that could be compared with the text; check the original model")
        return findings
    if changed := difference(lm.model_.solved(sums).arrays(), lm.model_.arrays()):
        raise SaffuError(f"its tables do not follow from its counts ({changed} differs); restore the folder")
    findings.verified.append("the tables follow from the counts")
    _check_sizes(lm)
    findings.verified.append(f"{lm.trained_on_['tokens']:,} tokens are counted, as many as recorded")
    counted_documents = in_parts(lm.trained_on_["documents"], lm.trained_on_["parts"])
    if lm.ledger_ is None:
        findings.notes.append("it has no ledger of its documents")
    elif lm.ledger_.documents != lm.trained_on_["parts"]:
        raise SaffuError(f"its ledger has {lm.ledger_.documents:,} of {counted_documents}; restore the folder")
    else:
        findings.verified.append(f"the ledger is complete: {counted_documents}")
    if corpus is not None:
        findings.verified.append(_check_text(lm, corpus))
    return findings


def _check_sizes(lm: SaffuLM) -> None:
    """The frequencies, the baselines, and the recorded sizes are those of the counts."""
    frequencies = lm.frequencies_
    tokens = lm.trained_on_["tokens"]
    if not np.array_equal(frequencies, lm.model_.counted_frequencies):
        raise SaffuError("its token frequencies are not those of its counts; restore the folder")
    ngrams = lm.statistics_.ngrams
    if ngrams is not None and not np.array_equal(frequencies, ngrams.frequencies()):
        raise SaffuError("its n-gram counts are not of the tokens that it has counted; restore the folder")
    if int(frequencies.sum()) != tokens:
        raise SaffuError(
            f"it has counted {int(frequencies.sum()):,} tokens, but records {tokens:,}; restore the folder"
        )


def _check_text(lm: SaffuLM, corpus: TokenCorpus) -> str:
    """The counts are exactly those of a text."""
    parts, exact = counted_text(lm, corpus)
    held_out = plural(corpus.lines - parts.lines, "line")
    those = "exactly those of the text" if exact else "those of the text, except for rounding"
    return f"the counts are {those} ({parts.lines:,} lines; {held_out} held out)"


def counted_text(lm: SaffuLM, corpus: TokenCorpus) -> tuple[TokenCorpus, bool]:
    """What a model has counted of its text, and whether its counts are exactly those of the text, or rounded.

    Raises SaffuError if they are others. Only the paper's are rounded, depending on the portions they were added in.
    """
    parts = corpus
    if lm.ledger_ is not None:
        matches = Matches.of(corpus, lm.ledger_, int(lm.source_.get("hold_out") or 0))
        cause, _ = matches.problem(lm.model_.ngrams, lm.tokenizer_.decode)
        if cause:
            raise SaffuError(f"its counts are not those of the text: {cause}")
        parts, left = matches.left()
        if left.documents:
            parts_left = plural(left.documents, "document")
            raise SaffuError(f"{parts_left} or parts that are counted are not in the text, or not that often")
    counts = lm.model_.count(parts).arrays()
    sums = lm.model_.sums.arrays()
    statistics = difference(statistics_of(lm, parts).arrays(), lm.statistics_.arrays())
    if changed := difference(counts, sums, ROUNDING) or statistics:
        raise SaffuError(f"its counts are not those of the text ({changed} differs)")
    return parts, not difference(counts, sums)


def difference(one: Arrays, other: Arrays, tolerance: float = 0.0) -> str:
    """The name of an array that is not the same in both; empty if all are.

    `tolerance` is the difference that numbers other than integers may have, as a share of the largest.
    """
    names = sorted(one.keys() | other.keys())
    return next(
        (
            name
            for name in names
            if name not in one or name not in other or not _equal(one[name], other[name], tolerance)
        ),
        "",
    )


def _equal(a: Array, b: Array, tolerance: float) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    rounded = tolerance and a.dtype.kind == "f" and np.isfinite(a).all()
    return a.tobytes() == b.tobytes() or bool(rounded and np.allclose(a, b, 0, tolerance * np.abs(a).max(initial=0)))
