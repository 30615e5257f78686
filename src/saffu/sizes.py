"""Shapes for every purse: from a number of parameters to settings, by a measured rule (docs/calibration.md)."""

from collections.abc import Iterable
from dataclasses import replace

from saffu.config import SaffuConfig
from saffu.corpus import TokenCorpus
from saffu.errors import SaffuError
from saffu.ngram import NgramCounts
from saffu.tokenizer import Tokenizer
from saffu.views import views_of

# Memory and radius of calibrated models, the best first: farther slots are the first to go, then longer contexts.
CALIBRATED_SHAPES = ((5, 8), (5, 4), (4, 3), (3, 2), (2, 1))
LEAST_KEPT_WORDS = 64  # no vocabulary is made smaller than these words need


def fitting(config: SaffuConfig, documents: Iterable[str], parameters: int) -> tuple[SaffuConfig, Tokenizer]:
    """The best settings that need at most so many parameters on these documents, and the tokenizer they come with."""
    while True:
        tokenizer = Tokenizer.train(
            documents, words=config.words, kept_words=config.kept_words, count_by=config.count_by
        )
        shape = _calibrated_shape if config.solution == "calibrated" else _network_shape
        found = shape(config, documents, tokenizer, parameters)
        if found is not None:
            return found, tokenizer
        if config.kept_words <= LEAST_KEPT_WORDS:
            raise SaffuError(f"no shape of this preset needs only {parameters:,} parameters on this text; allow more")
        config = replace(config, kept_words=config.kept_words // 2)  # a smaller vocabulary


def _calibrated_shape(
    config: SaffuConfig, documents: Iterable[str], tokenizer: Tokenizer, parameters: int
) -> SaffuConfig | None:
    """The first of the shapes whose counts are few enough: each distinct n-gram and pair is a parameter."""
    corpus = TokenCorpus.build(documents, tokenizer)
    distinct: dict[tuple[int, ...], int] = {}
    for memory, radius in CALIBRATED_SHAPES:
        shaped = replace(config, memory=memory, radius=radius)
        views = views_of(shaped)
        total = len(tokenizer) + len(views) + 1
        for view in views:
            if view.classes:
                total += len(tokenizer)
            elif view.name == "memory" or view.distances[0] >= memory:
                if view.distances not in distinct:
                    order = len(view.distances) + 1
                    counts = NgramCounts.count(corpus.ids, corpus.starts, order, len(tokenizer), view.distances)
                    distinct[view.distances] = counts.distinct
                total += distinct[view.distances]
        if total <= parameters:
            return shaped
    return None


def _network_shape(
    config: SaffuConfig, documents: Iterable[str], tokenizer: Tokenizer, parameters: int
) -> SaffuConfig | None:
    """As many dimensions as there is room for: of each token's vector, and of each slot's decoder.

    Few dimensions lose more than a small vocabulary does, so with less than 128 the vocabulary is halved first.
    """
    tokens, slots = len(tokenizer), config.radius
    dimension = min(tokens, (parameters - tokens - slots * (slots + 1)) // (tokens * (slots + 1)))
    enough = 128 if config.kept_words > LEAST_KEPT_WORDS else 16
    return replace(config, radius_dimension=dimension) if dimension >= min(enough, tokens) else None
