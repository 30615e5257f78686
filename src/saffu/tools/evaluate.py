"""How well a model predicts text: perplexity and bits per byte, next to n-gram baselines on the same targets."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from saffu.interface import Floats, Model, Score
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, UNKNOWN, Tokenizer, WordTokenizer

if TYPE_CHECKING:  # compiled kernels are loaded only where n-grams are used
    from saffu.calibrated.ngrams import NgramCounts

REFERENCES = {"unigram": 1, "bigram": 2, "trigram": 3, "5-gram": 5}
REFERENCE_ORDER = 3  # counted for the baselines, unless a model holds longer n-grams anyway
PROGRESS_BAR_FROM = 5_000  # targets, from which on scoring may take a second
CACHE_WEIGHT = 0.1  # of a cache mixed with n-grams: about the best value on running text


def evaluate(model: Model, corpus: TokenCorpus, progress: str | None = "evaluate") -> Score:
    """Score a corpus; long ones show a progress bar with the title `progress`."""
    corpus.require_text("score")
    log_p = model.log_probabilities(corpus, progress if corpus.targets >= PROGRESS_BAR_FROM else None)
    return Score(-float(log_p.sum()), corpus.targets, corpus.bytes)


def unknown_words(tokenizer: Tokenizer, corpus: TokenCorpus) -> int:
    """Count the tokens that stand for words that a closed vocabulary does not have."""
    return int((corpus.ids == tokenizer.encode(UNKNOWN)[0]).sum()) if isinstance(tokenizer, WordTokenizer) else 0


def dev_facts(score: Score) -> dict[str, float]:
    """The scores of held-out text for a row of a training log."""
    return {"dev_perplexity": score.perplexity, "dev_bits_per_byte": score.bits_per_byte, "dev_targets": score.targets}


def count_references(corpus: TokenCorpus, vocabulary: int) -> NgramCounts:
    """Count the n-grams that the baselines are estimated from."""
    from saffu.calibrated.ngrams import NgramCounts

    return NgramCounts.count(corpus, REFERENCE_ORDER, vocabulary)


def references_of(model: Model) -> NgramCounts | None:
    """The n-gram counts in a model's own sums, if it has any that the baselines can be estimated from."""
    ngrams: NgramCounts | None = model.ngrams
    return ngrams if ngrams is not None and ngrams.order >= REFERENCE_ORDER else None


def evaluate_references(counts: NgramCounts, corpus: TokenCorpus) -> dict[str, Score]:
    """Score a unigram model and interpolated Kneser–Ney models, up to the order that was counted."""
    from saffu.calibrated.kneser_ney import KneserNey

    corpus.require_text("score")
    scores = {}
    for name in [name for name, order in REFERENCES.items() if order <= counts.order]:
        log_p = KneserNey(counts, REFERENCES[name]).log_probabilities(corpus)
        scores[name] = Score(-float(log_p.sum()), corpus.targets, corpus.bytes)
    if corpus.lines > corpus.documents:  # running text, where a cache helps n-grams too
        shares = np.exp(log_p)
        cache = recency_shares(corpus, counts.frequencies())
        mixed = np.log((1 - CACHE_WEIGHT) * shares + CACHE_WEIGHT * cache)
        scores[f"{name} with cache"] = Score(-float(mixed.sum()), corpus.targets, corpus.bytes)
    return scores


def recency_shares(corpus: TokenCorpus, frequencies: npt.NDArray[np.int64], half_life: float = 200.0) -> Floats:
    """p of every target under a decaying cache of its document so far (Kuhn & De Mori 1990): (targets,).

    p = (c + 5f)/(Σc + 5), where c counts preceding tokens, with weights that halve every `half_life` tokens, and f is
    the token's relative frequency in the training text.

    >>> corpus = TokenCorpus(np.array([4, 4, 3]), np.array([0, 3]), np.array([4]))
    >>> recency_shares(corpus, np.array([0, 0, 0, 1, 1]), half_life=1.0).round(3).tolist()
    [0.5, 0.583, 0.385]
    """
    prior = (frequencies + 0.5) / (frequencies[EOD:] + 0.5).sum()
    growth = 2 ** (1 / half_life)
    ids = corpus.ids.tolist()
    out = []
    for begin, end in pairwise(corpus.starts.tolist()):
        counts: dict[int, float] = {}
        scale, total = 1.0, 0.0
        for token in ids[begin:end]:
            out.append((counts.get(token, 0.0) / scale + 5 * prior[token]) / (total + 5))
            scale = scale * growth
            total = total / growth + 1
            counts[token] = counts.get(token, 0.0) + scale
            if scale > 1e100:
                counts = {known: count / scale for known, count in counts.items()}
                scale = 1.0
    return np.array(out)
