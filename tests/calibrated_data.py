"""Small calibrated models with random classes and exponents, for tests."""

from __future__ import annotations

import numpy as np

from conftest import corpus_of
from reference.calibrated import CalibratedReference
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.model import CalibratedModel, Encoder
from saffu.calibrated.views import CalibratedSums, exponent_slices, memory_slices, views_of
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD

VOCABULARY = 24
SMALL = CalibratedConfig(order=4, slots=5, word_classes=10, output_classes=4, cache=0)
CACHED = CalibratedConfig(order=3, slots=2, word_classes=0, output_classes=4, cache=12)


def documents_of(corpus: TokenCorpus) -> list[list[int]]:
    return [corpus.ids[a:b].tolist() for a, b in zip(corpus.starts[:-1], corpus.starts[1:], strict=True)]


def random_corpus(seed: int, documents: int = 12, lines: int = 2, vocabulary: int = VOCABULARY) -> TokenCorpus:
    """Documents in which few tokens are frequent and repeat what was said; the last token never occurs."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(documents):
        favorites = rng.integers(EOD + 1, vocabulary - 1, size=5)
        length = int(rng.integers(0, 14))
        drawn.append([rng.choice(favorites, size=length).tolist() for _ in range(rng.integers(1, lines + 1))])
    return corpus_of(drawn)


def random_encoder(config: CalibratedConfig, seed: int, vocabulary: int = VOCABULARY) -> Encoder:
    """Classes and exponents at random, some exponents zero; the special tokens keep classes of their own."""
    rng = np.random.default_rng(seed)
    views, number = views_of(config), min(config.output_classes, vocabulary - EOD)
    outputs = np.concatenate([np.arange(number), rng.integers(0, number, size=vocabulary - EOD - number)])
    contexts = {}
    for size in {view.classes for view in views if view.classes}:
        contexts[size] = rng.integers(EOD + 1, EOD + 1 + size, size=vocabulary).astype(np.uint16)
        contexts[size][: EOD + 1] = np.arange(EOD + 1)
    exponents = []
    for number in (exponent_slices(views)[-1].stop, memory_slices(config)[-1].stop):
        exponents.append(rng.random((2, number)) * 0.5 * (rng.random((2, number)) < 0.8))
    shuffled = np.concatenate([np.zeros(EOD), rng.permutation(outputs)]).astype(np.uint16)
    return Encoder(shuffled, contexts, *exponents, tuple(views))


def random_model(
    config: CalibratedConfig, corpus: TokenCorpus, seed: int, vocabulary: int = VOCABULARY
) -> CalibratedModel:
    sums = CalibratedSums.count(corpus, config, vocabulary)
    return CalibratedModel.from_sums(config, random_encoder(config, seed, vocabulary), sums)


def reference_of(model: CalibratedModel, corpus: TokenCorpus) -> CalibratedReference:
    return CalibratedReference(documents_of(corpus), model.vocabulary, model.config, model.encoder)


def reference_scores(reference: CalibratedReference, corpus: TokenCorpus) -> np.ndarray:
    """ln p of every target."""
    return np.array(
        [
            reference.log_probabilities(document[:place])[token]
            for document in documents_of(corpus)
            for place, token in enumerate(document)
        ]
    )
