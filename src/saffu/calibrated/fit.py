"""Fitting: count, hold out, find classes, fit exponents, solve.

The exponents of the product are solved on text that the counts have not seen. For features φ (one per part, over the
outputs) the log-likelihood Σ_m log softmax(Σ_j a_j φ_mj)_{i_m} is concave in a. Its gradient is the features of the
targets minus their expectation (the paper's V, summed over targets), and its Hessian is minus the covariance of the
features. So Newton's method needs no learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from saffu.calibrated.classes import Neighbors, context_classes, near_pairs, output_classes, vectors_of_pairs
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.kernels import TOKEN, Array, library, pointer
from saffu.calibrated.model import CalibratedModel, Encoder
from saffu.calibrated.ngrams import NgramCounts, checked_ids
from saffu.calibrated.views import (
    NGRAM,
    CalibratedSums,
    exponent_slices,
    memory_parts,
    memory_slices,
    unfitted_exponents,
    views_of,
)
from saffu.errors import SaffuError
from saffu.format import progress_bar
from saffu.interface import Floats, Stage
from saffu.text.corpus import TokenCorpus
from saffu.workers import in_parallel

HELD_OUT = 20  # every 20th part is held out to fit exponents, and counted afterward
MIN_DOCUMENTS = 400  # documents; a corpus with fewer is cut into this many parts
SHORTEST = 8  # targets in such a part
CALIBRATION_TARGETS = 6_000, 30_000  # few, for one exponent per view; many, for all of them
MOMENT_CHUNKS = 16  # of the targets, summed one by one
MEMORY_PRECISION = 25.0  # of the memory's exponents around zero: each is measured where its part says something
STRENGTH = 100.0  # targets that balance the pull of an exponent toward its view's common one


def fit(corpus: TokenCorpus, vocabulary: int, config: CalibratedConfig) -> Iterator[Stage]:
    """Count a corpus and solve its model, in one stage."""
    if not corpus.targets:
        raise SaffuError("the corpus holds no text; pass at least one non-empty document")
    encoder, sums, warnings = fit_encoder(corpus, vocabulary, config)
    yield finished_stage(CalibratedModel.from_sums(config, encoder, sums, "build tables"), warnings)


def finished_stage(model: CalibratedModel, warnings: Sequence[str]) -> Stage:
    """A fitted model, and the facts about it for the log."""
    facts: dict[str, Any] = {"exponents": exponents_by_part(model)}
    guessed = [view.name for view, table in zip(model.views, model.tables, strict=True) if not table.estimated.all()]
    if guessed:
        names = ", ".join(guessed) if len(guessed) < len(model.views) else "all parts"
        cause = "too little text, or too much repetition, to estimate the discounts"
        warnings = [*warnings, f"{cause} of {names}; fallback values are used"]
    return Stage("counted", model, facts | ({"warnings": warnings} if warnings else {}))


def fit_encoder(
    corpus: TokenCorpus, vocabulary: int, config: CalibratedConfig
) -> tuple[Encoder, CalibratedSums, list[str]]:
    """Classes from the counts of all but the held-out text, exponents from how these counts predict that text.

    Also the counts of all text.
    """
    held_out = held_out_ranges(corpus)
    with progress_bar("count n-grams", unit=None):
        sums = CalibratedSums.count(corpus, config, vocabulary, complement(held_out, corpus.targets))
        near = near_pairs(sums.ngrams)
    encoder = class_encoder(config, near, sums.ngrams.frequencies())
    measurable = len(held_out) > 0 and sums.ngrams.distinct > 0
    if measurable:
        model = CalibratedModel.from_sums(config, encoder, sums, "build tables of all but a sample")
        encoder = calibrated_encoder(model, corpus, held_out)
    if len(held_out):
        with progress_bar("count the sample", unit=None):
            sums = sums + CalibratedSums.count(corpus, config, vocabulary, held_out)
    return encoder, sums, [] if measurable else ["too little text to measure exponents; default values are used"]


def class_encoder(config: CalibratedConfig, near: Sequence[NgramCounts], frequencies: Array) -> Encoder:
    """Classes from pairs of tokens one and two apart, and the exponents that calibration starts from."""
    views = views_of(config)
    sizes = sorted({view.classes for view in views if view.classes}, reverse=True)
    with progress_bar("find word classes", unit=None):
        vectors = vectors_of_pairs(near)
        before, after = Neighbors.before(near[0]), Neighbors.after(near[0])
        found = in_parallel(lambda number: context_classes(vectors, frequencies, number, after), sizes)
        outputs = output_classes(vectors, frequencies, config.output_classes, before)
    classes = dict(zip(sizes, found, strict=True))
    start = np.zeros(exponent_slices(views)[-1].stop)
    for view, where in zip(views, exponent_slices(views)[1:], strict=True):
        start[where] = 0.7 if view.name == NGRAM else 0.1
    plain = np.tile(start, (2, 1))
    return Encoder(outputs, classes, plain, unfitted_exponents(config), tuple(views))


def calibrated_encoder(model: CalibratedModel, corpus: TokenCorpus, held_out: Array) -> Encoder:
    """The model's encoder with exponents fitted to `held_out` ranges (n, 2), which its counts have not seen."""
    trial = Calibration(model, corpus, held_out)
    encoder = model.encoder
    encoder = replace(encoder, plain=trial.solve(encoder.plain, exponent_slices(model.views), of_memory=False))
    if model.config.cache:
        model.encoder = encoder  # the memory comes on top of these
        encoder = replace(encoder, memory=trial.solve(encoder.memory, memory_slices(model.config), of_memory=True))
    return encoder


def held_out_ranges(corpus: TokenCorpus) -> Array:
    """Ranges (n, 2) of targets to fit exponents on: every 20th document or, if there are few, every 20th stretch."""
    if corpus.documents >= MIN_DOCUMENTS:
        documents = np.arange(0, corpus.documents, HELD_OUT)
        return np.stack([corpus.starts[documents], corpus.starts[documents + 1]], axis=1)
    length = max(SHORTEST, corpus.targets // MIN_DOCUMENTS)
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


@dataclass(frozen=True)
class Moments:
    """What one Newton step needs: sums over targets."""

    log_likelihood: float
    targets: int
    gradient: Floats  # (J,) Σ_m φ_{m,·,i_m} − E φ
    covariance: Floats  # (J, J) Σ_m Cov φ: minus the Hessian


def newton_step(a: Floats, now: Moments, prior: Floats, strength: float, precision: float = 0.0) -> Floats:
    """Maximize the quadratic approximation of the likelihood at exponents a, within the bound a ≥ 0.

    A quadratic pull toward `prior`, as strong as `strength` targets, keeps few targets from moving exponents far. So
    does a normal distribution of this `precision` around `prior`, also where few of many targets have a feature. An
    exponent that reaches zero is held there while the others move on, and released if its gradient is positive. Every
    step gains, and there are few.

    >>> now = Moments(0.0, 1, np.array([2.0, -1.0]), np.eye(2))
    >>> newton_step(np.zeros(2), now, np.zeros(2), 0.0).round(3)
    array([2., 0.])
    """
    average = np.diag(now.covariance) / max(1, now.targets)
    pull = strength * average + precision
    curvature = now.covariance + np.diag(pull + 1e-6 * max(float(np.diag(now.covariance).mean()), 1e-9))
    gradient = now.gradient + pull * (prior - a)
    x = a.copy()
    free = (a > 0) | (gradient > 0)
    residual = gradient
    for _ in range(4 * len(a)):
        direction = np.zeros_like(a)
        direction[free] = np.linalg.solve(curvature[np.ix_(free, free)], residual[free])
        max_step = np.where(direction < 0, x / np.where(direction < 0, -direction, 1), np.inf)
        x = np.maximum(x + min(1.0, float(max_step.min())) * direction, 0)
        residual = gradient - curvature @ (x - a)
        if max_step.min() < 1:
            x[max_step.argmin()] = 0
            free[max_step.argmin()] = False
        elif (residual[~free] > 1e-9 * np.abs(gradient).max()).any():
            free[np.where(free, -np.inf, residual).argmax()] = True
        else:
            break
    return x - a


def fit_exponents(
    moments: Callable[[Floats], list[Moments]],
    start: Floats,
    prior: Floats,
    strength: float,
    tolerance: float = 1e-5,
    rounds: int = 20,
    precision: float = 0.0,
) -> Floats:
    """Exponents (problems, J) that maximize the likelihood of several independent problems at once.

    `moments` returns those of every problem at the given exponents. Steps that would lose are halved; a problem is done
    once a step gains less than `tolerance` nats per target.
    """
    a = start.copy()
    now = moments(start)
    active = np.array([m.targets > 0 for m in now])

    def value(number: int, m: Moments, at: Floats) -> float:
        spread = np.diag(now[number].covariance) / max(1, now[number].targets)
        return m.log_likelihood - 0.5 * float((strength * spread + precision) @ (at - prior[number]) ** 2)

    for _ in range(rounds):
        if not active.any():
            break
        each = zip(active, a, now, prior, strict=True)
        steps = np.stack([newton_step(x, m, p, strength, precision) if on else 0 * x for on, x, m, p in each])
        for _ in range(12):
            after = moments(a + steps)
            lost = [g and value(i, m, a[i] + steps[i]) < value(i, n, a[i]) - 1e-9 * abs(n.log_likelihood)
                    for i, (g, m, n) in enumerate(zip(active, after, now, strict=True))]  # fmt: skip
            if not any(lost):
                break
            steps[lost] /= 2
        else:
            steps[lost] = 0
            after = moments(a + steps)
        gained = [(m.log_likelihood - n.log_likelihood) / max(1, n.targets) for m, n in zip(after, now, strict=True)]
        a = a + steps
        now = after
        active &= np.array(gained) > tolerance
    return a


class Calibration:
    """Fits exponents of a model on ranges of a corpus that its counts have not seen."""

    def __init__(self, model: CalibratedModel, corpus: TokenCorpus, ranges: Array):
        self.model = model
        self.corpus = corpus
        self.targets = np.concatenate([np.arange(a, b) for a, b in ranges])
        self.ids = checked_ids(corpus, model.vocabulary)
        self.starts = np.ascontiguousarray(corpus.starts, dtype=np.int64)
        # A memory begins anew with each range, because the text around it was counted: there, it would add nothing new.
        bounds = np.sort(np.concatenate([self.starts, np.ravel(ranges)])).astype(np.int64)
        self.memory_starts = bounds[np.diff(bounds, prepend=-1) > 0]

    def solve(self, start: Floats, slices: Sequence[slice], of_memory: bool) -> Floats:
        """(2, J): first one exponent for each part, from few targets; then, from there, all of them, from many."""
        few, many = (self.targets[:: max(1, len(self.targets) // number)] for number in CALIBRATION_TARGETS)
        tied = np.zeros((start.shape[1], len(slices)))  # which exponents belong to which part
        for part, where in enumerate(slices):
            tied[where, part] = 1

        def measured(targets: Array, exponents: Floats) -> list[Moments]:
            bar.update()
            return self.moments(targets, exponents, of_memory)

        def common(exponents: Floats) -> list[Moments]:
            return [
                Moments(m.log_likelihood, m.targets, tied.T @ m.gradient, tied.T @ m.covariance @ tied)
                for m in measured(few, exponents @ tied.T)
            ]

        first = np.stack([start[:, where].mean(1) for where in slices], axis=1)
        precision = MEMORY_PRECISION if of_memory else 0.0
        with progress_bar("fit exponents of the memory" if of_memory else "fit exponents", unit=" trials") as bar:
            first = fit_exponents(common, first, first, STRENGTH, 1e-4, precision=precision) @ tied.T
            return fit_exponents(lambda e: measured(many, e), first, first, STRENGTH, 2e-4, 1, precision)

    def moments(self, targets: Array, exponents: Floats, of_memory: bool) -> list[Moments]:
        """The moments of both levels at exponents (2, J)."""
        encoder = self.model.encoder
        J = exponents.shape[1]
        self.model.native.set_exponents(*((encoder.plain, exponents) if of_memory else (exponents, encoder.memory)))
        memory_starts = self.memory_starts if of_memory else None

        def work(share: Array) -> Floats:
            share = np.ascontiguousarray(share)
            sums = np.zeros((2, 2 + J + J * J))
            library.saffu_moments(
                self.model.native, pointer(self.ids, TOKEN), pointer(self.starts, np.int64),
                self.corpus.documents, pointer(share, np.int64), len(share), pointer(memory_starts, np.int64),
                len(self.memory_starts) - 1, J, pointer(sums, np.float64),
            )  # fmt: skip
            return sums

        # Contiguous shares, so that the memory moves in small steps; a fixed number, so that sums are equal everywhere.
        total = np.sum(in_parallel(work, np.array_split(targets, MOMENT_CHUNKS)), axis=0)
        return [Moments(row[0], int(row[1]), row[2 : 2 + J], row[2 + J :].reshape(J, J)) for row in total]


def exponents_by_part(model: CalibratedModel) -> dict[str, list[float]]:
    """The mean exponents of the prior, of each view, and of the memory, for classes and for tokens."""
    encoder = model.encoder
    parts = memory_parts(model.config)
    means = [encoder.plain[:, where].mean(1) for where in exponent_slices(model.views)]
    means += [encoder.memory[:, where].mean(1) for where in memory_slices(model.config)] if parts else []
    names = ["prior", *(view.name for view in model.views), *(["without memory", *parts] if parts else [])]
    return {name: mean.round(4).tolist() for name, mean in zip(names, means, strict=True)}
