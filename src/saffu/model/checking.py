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
    parts = counted_text(lm, corpus)
    held_out = plural(corpus.lines - parts.lines, "line")
    return f"the counts are exactly those of the text ({parts.lines:,} lines; {held_out} held out)"


def counted_text(lm: SaffuLM, corpus: TokenCorpus) -> TokenCorpus:
    """What a model has counted of its text. Raises SaffuError if its counts are not exactly those of the text."""
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
    changed = difference(lm.model_.count(parts).arrays(), lm.model_.sums.arrays())
    changed = changed or difference(statistics_of(lm, parts).arrays(), lm.statistics_.arrays())
    if changed:
        raise SaffuError(f"its counts are not those of the text ({changed} differs)")
    return parts


def difference(one: Arrays, other: Arrays) -> str:
    """The name of an array that is not the same in both; empty if all are."""
    if changed := sorted(one.keys() ^ other.keys()):
        return changed[0]
    return next((name for name, array in sorted(one.items()) if not _equal(array, other[name])), "")


def _equal(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
