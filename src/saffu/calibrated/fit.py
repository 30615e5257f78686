"""Fitting: count, hold out, find classes, fit exponents, solve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from saffu.calibrated.classes import Company, context_classes, near_pairs, output_classes, vectors_of_pairs
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.exponents import Moments, calibrated
from saffu.calibrated.kernels import AGES, CACHES, EVIDENCE, Array, library, pointer
from saffu.calibrated.layout import exponent_slices
from saffu.calibrated.model import CalibratedModel, Encoder
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.rows import checked_ids
from saffu.calibrated.views import MEMORY, CalibratedSums, View, views_of
from saffu.errors import SaffuError
from saffu.interface import Floats, Stage
from saffu.text.corpus import TokenCorpus
from saffu.threads import in_parallel

HELD_OUT = 20  # every 20th part is held out to fit exponents, and counted afterward
FEWEST = 400  # documents; a corpus with fewer is cut into this many parts
SHORTEST = 8  # targets in such a part
CALIBRATION_TARGETS = 6_000, 30_000  # few, for one exponent per view; many, for all of them
DISTRUST = 3.0  # log-odds against the cache where it was not measured
SHARES = 16  # of the targets, summed one by one
MEASURED = 200  # targets needed to measure it
STRENGTH = 100.0  # targets that balance the pull of an exponent toward its view's common one


def fit(corpus: TokenCorpus, vocabulary: int, config: CalibratedConfig) -> Iterator[Stage]:
    """Count a corpus and solve its model, in one stage."""
    if not corpus.targets:
        raise SaffuError("the corpus holds no text; pass at least one non-empty document")
    encoder, sums, warnings = fit_encoder(corpus, vocabulary, config)
    yield finished_stage(CalibratedModel.from_sums(config, encoder, sums), warnings)


def finished_stage(model: CalibratedModel, warnings: Sequence[str]) -> Stage:
    """A fitted model, and the facts about it for the log."""
    facts: dict[str, Any] = {"exponents": exponents_by_part(model)}
    guessed = [view.name for view, table in zip(model.views, model.tables, strict=True) if not table.estimated.all()]
    if guessed:
        names = ", ".join(guessed)
        warnings = [*warnings, f"too little text to estimate the discounts of {names}; fallback values are used"]
    return Stage("calibrated", model, facts | ({"warnings": warnings} if warnings else {}))


def fit_encoder(
    corpus: TokenCorpus, vocabulary: int, config: CalibratedConfig
) -> tuple[Encoder, CalibratedSums, list[str]]:
    """Classes from the counts of all but the held-out text, exponents from how these counts predict that text.

    Also the counts of all text.
    """
    held_out = held_out_ranges(corpus)
    sums = CalibratedSums.count(corpus, config, vocabulary, complement(held_out, corpus.targets))
    encoder = class_encoder(config, near_pairs(sums.memory), sums.memory.frequencies())
    measurable = len(held_out) > 0 and sums.memory.distinct > 0
    if measurable:
        encoder = calibrated_encoder(CalibratedModel.from_sums(config, encoder, sums), corpus, held_out)
    if len(held_out):
        sums = sums + CalibratedSums.count(corpus, config, vocabulary, held_out)
    return encoder, sums, [] if measurable else ["too little text to measure exponents; default values are used"]


def class_encoder(config: CalibratedConfig, near: Sequence[NgramCounts], frequencies: Array) -> Encoder:
    """Classes from pairs of tokens one and two apart, and the exponents that calibration starts from."""
    views, vectors = views_of(config), vectors_of_pairs(near)
    before, after = Company.before(near[0]), Company.after(near[0])
    sizes = sorted({view.classes for view in views if view.classes}, reverse=True)
    classes = dict(
        zip(sizes, in_parallel(lambda n: context_classes(vectors, frequencies, n, after), sizes), strict=True)
    )
    start = np.zeros(exponent_slices(views)[-1].stop)
    for view, where in zip(views, exponent_slices(views)[1:], strict=True):
        start[where] = 0.7 if view.name == MEMORY else 0.1
    plain = np.tile(start, (2, 1))
    outputs = output_classes(vectors, frequencies, config.output_classes, before)
    return Encoder(outputs, classes, plain, with_caches(plain, views), np.full(EVIDENCE, -DISTRUST))


def calibrated_encoder(model: CalibratedModel, corpus: TokenCorpus, held_out: Array) -> Encoder:
    """The model's encoder with exponents fitted to `held_out` ranges (n, 2), which its counts have not seen."""
    trial, encoder = Calibration(model, corpus, held_out), model.encoder
    plain = trial.solve(encoder.plain, with_cache=False)
    encoder = replace(encoder, plain=plain, cached=with_caches(plain, model.views))
    if model.config.cache:
        encoder = replace(encoder, cached=trial.solve(encoder.cached, with_cache=True))
        encoder = replace(encoder, trust=trial.trust(encoder))
    return encoder


def with_caches(plain: Floats, views: list[View]) -> Floats:
    """Exponents (2, J) with those of the caches, all zero, at their end."""
    more = exponent_slices(views, with_cache=True)[-1].stop - plain.shape[1]
    return np.concatenate([plain, np.zeros((2, more))], axis=1)


def held_out_ranges(corpus: TokenCorpus) -> Array:
    """Ranges (n, 2) of targets to fit exponents on: every 20th document or, if there are few, every 20th stretch."""
    if corpus.documents >= FEWEST:
        chosen = np.arange(0, corpus.documents, HELD_OUT)
        return np.stack([corpus.starts[chosen], corpus.starts[chosen + 1]], axis=1)
    length = max(SHORTEST, corpus.targets // FEWEST)
    if corpus.targets < 4 * HELD_OUT * length:  # too short for that: hold out one stretch in the middle
        begin, end = corpus.targets * 2 // 5, corpus.targets * 3 // 5
        return np.array([[begin, end]] if end - begin >= SHORTEST else np.zeros((0, 2)), dtype=np.int64)
    begins = np.arange(length * (HELD_OUT // 2), corpus.targets - length, length * HELD_OUT)
    return np.stack([begins, begins + length], axis=1)


def complement(ranges: Array, targets: int) -> Array:
    """What lies between ascending ranges (n, 2): (n + 1, 2).

    >>> complement(np.array([[2, 3], [5, 9]]), 9).tolist()
    [[0, 2], [3, 5], [9, 9]]
    """
    return np.stack([np.append(0, ranges[:, 1]), np.append(ranges[:, 0], targets)], axis=1)


class Calibration:
    """Fits exponents of a model on ranges of a corpus that its counts have not seen."""

    def __init__(self, model: CalibratedModel, corpus: TokenCorpus, ranges: Array):
        self.model, self.corpus = model, corpus
        self.targets = np.concatenate([np.arange(a, b) for a, b in ranges])
        self.ids = checked_ids(corpus, model.vocabulary)
        self.starts = np.ascontiguousarray(corpus.starts, dtype=np.int64)

    def solve(self, start: Floats, with_cache: bool) -> Floats:
        """(2, J): first one exponent for each view, from few targets; then, from there, all of them, from many."""
        few, many = (self.targets[:: max(1, len(self.targets) // number)] for number in CALIBRATION_TARGETS)
        slices = exponent_slices(self.model.views, with_cache)
        tied = np.zeros((start.shape[1], len(slices)))  # which exponents belong to which view
        for view, where in enumerate(slices):
            tied[where, view] = 1

        def common(exponents: Floats) -> list[Moments]:
            return [
                Moments(m.log_likelihood, m.targets, tied.T @ m.gradient, tied.T @ m.covariance @ tied)
                for m in self.moments(few, exponents @ tied.T, with_cache)
            ]

        first = np.stack([start[:, where].mean(1) for where in slices], axis=1)
        first = calibrated(common, first, first, STRENGTH, tolerance=1e-4) @ tied.T
        return calibrated(lambda e: self.moments(many, e, with_cache), first, first, STRENGTH, tolerance=2e-4, rounds=1)

    def trust(self, encoder: Encoder) -> Floats:
        """Log-odds (EVIDENCE,) of the model with the cache in documents of each age; distrust where not measured."""
        targets = np.ascontiguousarray(self.targets[:: max(1, len(self.targets) // CALIBRATION_TARGETS[0])])
        self.model.native.set_exponents(encoder.plain, encoder.cached)
        both = np.empty((len(targets), 2))
        library.saffu_score_both(
            self.model.native.structure, pointer(self.ids, np.uint16), pointer(self.starts, np.int64),
            self.corpus.documents, pointer(targets, np.int64), len(targets), pointer(both, np.float64),
        )  # fmt: skip
        age = targets - self.starts[np.searchsorted(self.starts, targets, side="right") - 1]
        bucket, trust = np.searchsorted(AGES, age, side="right"), np.full(EVIDENCE, -DISTRUST)
        for number in range(EVIDENCE):
            plain, cached = np.exp(both[bucket == number]).T
            if len(plain) >= MEASURED:
                w = 0.5
                for _ in range(50):  # expectation–maximization of a mixture's weight
                    w = float(np.mean(w * cached / (w * cached + (1 - w) * plain)))
                trust[number] = np.clip(np.log(w / (1 - w)) if 0 < w < 1 else np.inf * (w - 0.5), -DISTRUST, DISTRUST)
        return trust

    def moments(self, targets: Array, exponents: Floats, with_cache: bool) -> list[Moments]:
        """The moments of both levels at exponents (2, J)."""
        encoder = self.model.encoder
        self.model.native.set_exponents(*((encoder.plain, exponents) if with_cache else (exponents, encoder.cached)))
        J = exponents.shape[1]

        def work(share: Array) -> Floats:
            share, sums = np.ascontiguousarray(share), np.zeros((2, 2 + J + J * J))
            library.saffu_moments(
                self.model.native.structure, pointer(self.ids, np.uint16), pointer(self.starts, np.int64),
                self.corpus.documents, pointer(share, np.int64), len(share), with_cache, J, pointer(sums, np.float64),
            )  # fmt: skip
            return sums

        # Contiguous shares, so that the cache moves in small steps; a fixed number, so that sums are equal everywhere.
        total = np.sum(in_parallel(work, np.array_split(targets, SHARES)), axis=0)
        return [Moments(row[0], int(row[1]), row[2 : 2 + J], row[2 + J :].reshape(J, J)) for row in total]


def exponents_by_part(model: CalibratedModel) -> dict[str, list[float]]:
    """The mean exponents of the prior, of each view, and of each cache, for classes and for tokens."""
    with_cache = model.config.cache > 0
    names = ["prior", *(view.name for view in model.views), *(CACHES if with_cache else ())]
    exponents = model.encoder.cached if with_cache else model.encoder.plain
    slices = exponent_slices(model.views, with_cache)
    return {
        name: [round(float(level[where].mean()), 4) for level in exponents]
        for name, where in zip(names, slices, strict=True)
    }
