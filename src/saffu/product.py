"""A calibrated product of counted views: the solution that goes beyond the paper.

The paper's closed form is naive Bayes: every slot of a context votes with full weight, though slots repeat each
other. Here each part of the context that is worth counting is a *view*, a Kneser–Ney model of what it sees:

    slots      one token at a distance k: the radial unit's slots, one-hot, decoded straight to the vocabulary
    memory     the nearest tokens together, up to `memory` − 1 of them
    classes    the same tokens, each known by its class only, so that what was seen of one word helps its kin

and the model is their product, each raised to an exponent that was measured on text the counts had not seen:

    log p(n | context) = γ log f_n + Σ_slots a_k log(p_k(n | x_k)/f_n) + Σ_memories a_v log p_v(n | x_1 x_2 …) − log Z

A slot is divided by the prior f so that a slot which tells nothing adds nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from saffu.calibrate import calibrated_exponents
from saffu.config import SaffuConfig
from saffu.corpus import Targets, TokenCorpus
from saffu.ngram import KneserNey, Level, NgramCounts
from saffu.tokenizer import EOD, PAD, SOD
from saffu.views import Ints, View, ViewCounts, token_classes, token_vectors, views_of

HELD_OUT = 20  # every so-many-th training document calibrates; it is counted too, afterwards
CALIBRATION_TARGETS = 6000
ROWS = 128  # predicted at a time: arrays stay small enough to be reused
PRIOR = "prior"


class LevelTable:
    """A level of a Kneser–Ney model, laid out to be added to many distributions at once.

    Contexts with many successors, few but met all the time, have their masses as dense rows; the others as lists.
    """

    def __init__(self, level: Level, vocabulary: int):
        self.contexts, self.vocabulary = level.contexts, vocabulary
        self.backoff = torch.from_numpy(level.backoff).float()
        sizes = np.diff(level.offsets)
        many = np.flatnonzero(sizes > vocabulary // 16)
        # Number of the dense row of each context; row 0 is empty, for all other contexts.
        self.row = torch.zeros(len(sizes), dtype=torch.int64)
        self.row[torch.from_numpy(many)] = torch.arange(1, len(many) + 1)
        listed = np.where(self.row.numpy() == 0, sizes, 0)
        self.sizes, self.begins = torch.from_numpy(listed), torch.from_numpy(level.offsets[:-1])
        self.tokens = torch.from_numpy((level.ngrams[:-1] % vocabulary).astype(np.int32))
        self.mass = torch.from_numpy(level.mass[:-1]).float()
        owner = self.row.repeat_interleave(torch.from_numpy(sizes))
        in_rows = owner > 0
        self.rows = torch.zeros(len(many) + 1, vocabulary)
        self.rows[owner[in_rows], self.tokens[in_rows].long()] = self.mass[in_rows]

    def add_to(self, probabilities: Tensor, numbers: Tensor, weight: Tensor) -> None:
        """probabilities (m, N) += weight · mass(context, ·) of the contexts with these numbers."""
        rows = self.row[numbers]
        if rows.any():
            probabilities.addcmul_(weight[:, None], self.rows[rows])
        sizes = self.sizes[numbers]
        row = torch.arange(len(numbers)).repeat_interleave(sizes)  # one entry for each n-gram in each row's list
        entry = torch.arange(len(row)) + (self.begins[numbers] - (sizes.cumsum(0) - sizes))[row]
        place = row * self.vocabulary + self.tokens[entry]
        probabilities.view(-1).index_add_(0, place, self.mass[entry] * weight[row])


class Part:
    """One view's Kneser–Ney model, ready to give whole log-distributions."""

    def __init__(self, view: View, counts: NgramCounts, classes: Ints | None):
        self.view, self.classes = view, classes
        self.model = KneserNey(counts)
        tiny = np.maximum(self.model.unigram, 1e-30)  # markers are never predicted; their logarithm must exist
        self.unigram = torch.from_numpy(tiny).float()
        self.tables = [LevelTable(level, counts.vocabulary) for level in reversed(self.model.levels)]
        none = np.zeros(0, dtype=np.int64)  # the tables hold all of a level but its contexts
        bare = [replace(level, ngrams=none, mass=none.astype(float), offsets=none) for level in self.model.levels]
        self.model.levels = bare

    def log_distribution(self, window: Ints) -> Tensor:
        """log p_v(· | context) for windows (m, lookback), nearest token last: (m, N)."""
        context = np.stack([window[:, -distance] for distance in reversed(self.view.distances)], axis=1)
        matches = self.model.matches(context if self.classes is None else self.classes[context])
        numbers = [torch.from_numpy(number) for _, number in matches]  # longest contexts first, as the tables
        weights = [torch.ones(len(window))]
        for table, number in zip(self.tables, numbers, strict=True):
            weights.append(weights[-1] * table.backoff[number])
        probabilities = torch.outer(weights[-1], self.unigram)
        for table, number, weight in zip(self.tables, numbers, weights[:-1], strict=True):
            table.add_to(probabilities, number, weight)
        return probabilities.log_()


class Product:
    """The calibrated product, with the manners of a `Network`: targets in, logits over the vocabulary out."""

    def __init__(
        self, config: SaffuConfig, counts: ViewCounts, classes: dict[str, Ints], prior: Tensor, exponents: Tensor
    ):
        self.config, self.counts, self.classes, self.exponents = config, counts, classes, exponents
        self.prior = prior  # (N,) log f
        self.vocabulary = len(prior)
        self.device = torch.device("cpu")

    @cached_property
    def parts(self) -> list[Part]:
        """The views, solved when they are first asked for: whoever only changes counts need not wait."""
        parts = []
        for view in tqdm(views_of(self.config), desc="solve views", disable=None, leave=False):
            classes = self.classes.get(view.name)
            parts.append(Part(view, self.counts.of(view, classes), classes))
        return parts

    @property
    def names(self) -> list[str]:
        """What the exponents belong to."""
        return [PRIOR, *(view.name for view in views_of(self.config))]

    @property
    def lookback(self) -> int:
        return max(distance for view in views_of(self.config) for distance in view.distances)

    def windows(self, targets: Targets) -> Ints:
        """The tokens before each target, nearest last; `<sod>` before the first, `<pad>` before that."""
        distance = torch.arange(self.lookback, 0, -1)
        window = targets.past[targets.at[:, None] - distance]
        window[distance > targets.positions[:, None]] = PAD
        window[distance == targets.positions[:, None] + 1] = SOD
        return np.asarray(window.numpy())

    def features(self, targets: Targets) -> Tensor:
        """What the exponents weigh, (n, 1 + views, N): log f, and for each view log p, less log f for a slot."""
        window = self.windows(targets)
        logs = [part.log_distribution(window) for part in self.parts]
        logs = [log - self.prior if part.view.is_slot else log for log, part in zip(logs, self.parts, strict=True)]
        return torch.stack([self.prior.expand(len(window), -1), *logs], dim=1)

    def calibration(self, corpus: TokenCorpus) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of features and targets, as calibration takes them; the markers below `<eod>` are left out."""
        with tqdm(total=corpus.targets, desc="calibrate", unit=" tokens", disable=None, leave=False) as bar:
            for targets in corpus.batches(ROWS, self.lookback):
                yield self.features(targets)[:, :, EOD:], targets.ids - EOD
                bar.update(len(targets.ids))

    def __call__(self, targets: Targets, document_inputs: Tensor | None = None) -> Tensor:
        """Logits (n, N)."""
        window = self.windows(targets)
        exponents = self.exponents[1:].tolist()
        slots = sum(a for a, part in zip(exponents, self.parts, strict=True) if part.view.is_slot)
        logits: Tensor = ((self.exponents[0] - slots) * self.prior).repeat(len(window), 1)
        for exponent, part in zip(exponents, self.parts, strict=True):
            if exponent:
                logits.add_(part.log_distribution(window), alpha=exponent)
        logits[:, :EOD] = -torch.inf
        return logits

    def log_probabilities(self, targets: Targets) -> Tensor:
        """log p of each target, (n,)."""
        return torch.log_softmax(self(targets), dim=1).gather(1, targets.ids[:, None]).squeeze(1)

    def batch_size(self) -> int:
        _ = self.parts  # solved by whoever asks how to predict, before threads that would each solve them
        return ROWS

    def references(self) -> NgramCounts | None:
        """Trigram counts, which the memory holds if it is long enough."""
        memory = self.counts.stored.get("memory")
        return None if memory is None or memory.order < 3 else memory.shortened(3)

    def frequencies(self) -> Tensor:
        """How often each token is a target, (N,), float64: every stored n-gram ends with one."""
        counts = next(iter(self.counts.stored.values()))
        targets = counts.column(counts.order - 1)
        return torch.from_numpy(np.bincount(targets, weights=counts.counts, minlength=self.vocabulary))

    def parameter_count(self) -> int:
        """Distinct counts kept, classes, prior and exponents."""
        kept = sum(counts.counts.size for counts in self.counts.stored.values())
        return kept + sum(c.size for c in self.classes.values()) + self.vocabulary + len(self.exponents)

    def state_dict(self) -> dict[str, Tensor]:
        """All that the model is, to be stored."""
        state = {"exponents": self.exponents, "prior": self.prior}
        state |= {f"classes.{name}": torch.from_numpy(c.astype(np.int32)) for name, c in self.classes.items()}
        for name, counts in self.counts.stored.items():
            state |= {f"counts.{name}.{key}": torch.from_numpy(array) for key, array in counts.tensors().items()}
        return state

    @classmethod
    def from_state(cls, config: SaffuConfig, state: dict[str, Any]) -> "Product":
        views = views_of(config)
        arrays = {name: tensor.numpy() for name, tensor in state.items()}
        classes = {name[8:]: a.astype(np.int64) for name, a in arrays.items() if name.startswith("classes.")}
        stored = {
            view.name: NgramCounts.from_tensors(
                {key: arrays[f"counts.{view.name}.{key}"] for key in ("shape", "keys", "counts")}
            )
            for view in views
            if f"counts.{view.name}.keys" in arrays
        }
        fitting = all(counts.order == len(view.distances) + 1 for view in views if (counts := stored.get(view.name)))
        if not fitting or len(state["exponents"]) != len(views) + 1:
            raise KeyError("the views of the settings are not those of the counts")
        return cls(config, ViewCounts(stored), classes, state["prior"], state["exponents"])


def log_prior(frequencies: Tensor) -> Tensor:
    """log f (N,) of the targets; markers are never targets, but their logarithm must exist."""
    prior = frequencies + 0.5
    prior[:EOD] = 1e-30
    return torch.log(prior / prior.sum()).float()


def fit_product(config: SaffuConfig, corpus: TokenCorpus, vocabulary: int, counts: ViewCounts | None = None) -> Product:
    """Count everything, if that is not done; calibrate on held-out documents, their counts subtracted; keep all."""
    counts = counts or ViewCounts.count(corpus, config, vocabulary)
    frequencies = corpus.frequencies(vocabulary)
    prior = log_prior(frequencies)
    names = [view.name for view in views_of(config)]
    exponents = torch.tensor([0.0 if "memory" in names else 1.0, *(0.7 if n == "memory" else 0.1 for n in names)])
    held_out = corpus.every(HELD_OUT if corpus.documents >= 20 * HELD_OUT else 5)
    known = (
        counts if held_out.documents == corpus.documents else counts - ViewCounts.count(held_out, config, vocabulary)
    )
    classes = {}
    if config.memory > 1 and config.classes > 1:
        vectors = token_vectors(known.stored["memory"])
        coarse = [view for view in views_of(config) if view.classes]
        classes = {view.name: token_classes(vectors, frequencies, view.classes) for view in coarse}
    if known is not counts:
        trial = Product(config, known, classes, prior, exponents)
        for targets, tolerance in ((CALIBRATION_TARGETS // 4, 1e-3), (CALIBRATION_TARGETS, 1e-4)):
            sample = held_out.thinned(targets)  # most steps on few targets, the last on all
            exponents = calibrated_exponents(lambda sample=sample: trial.calibration(sample), exponents, tolerance)  # type: ignore[misc]
        del trial, known, sample  # before the same is built of all counts
    return Product(config, counts, classes, prior, exponents)
