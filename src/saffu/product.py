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

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from tqdm import tqdm

from saffu.calibrate import Batches, calibrated_exponents, moments, newton_step
from saffu.config import SaffuConfig
from saffu.corpus import Targets, TokenCorpus
from saffu.explicit import look_up
from saffu.ngram import KneserNey, Level, NgramCounts
from saffu.tokenizer import EOD, PAD, SOD
from saffu.views import View, ViewCounts, token_classes, token_vectors, views_of

HELD_OUT = 20  # every so-many-th training document calibrates; it is counted too, afterwards
CALIBRATION_TARGETS = 1500, 6000  # few, for most steps, and many, for the last
ROWS = {"cpu": 256, "cuda": 2048}  # predicted at a time: on a CPU, arrays stay small enough to be reused
DENSE = 1 << 28  # most numbers of a table on a GPU all of whose rows are dense
PRIOR = "prior"


class LevelTable:
    """A level of a Kneser–Ney model, laid out to be added to many distributions at once.

    Contexts with many successors, few but met all the time, have their masses as dense rows; the others as lists. On a
    GPU all rows of a small table are dense: looking one up needs no word with the processor.
    """

    def __init__(self, level: Level, vocabulary: int):
        self.vocabulary = vocabulary
        self.backoff = level.backoff.float()
        sizes = torch.diff(level.offsets)
        fewest = 0 if sizes.is_cuda and sizes.numel() * vocabulary <= DENSE else vocabulary // 16
        many = (sizes > fewest).nonzero().squeeze(1)
        self.row = torch.zeros_like(sizes)  # of each context: the number of its dense row, from 1; 0 if it has none
        self.row[many] = torch.arange(1, len(many) + 1, device=many.device)
        self.sizes, self.begins = torch.where(self.row == 0, sizes, 0), level.offsets[:-1]
        self.has_lists = bool(self.sizes.any())
        self.tokens, self.mass = (level.ngrams[:-1] % vocabulary).int(), level.mass[:-1].float()
        owner = self.row.repeat_interleave(sizes)
        dense = owner.nonzero().squeeze(1)
        self.rows = self.mass.new_zeros(len(many), vocabulary)
        self.rows[owner[dense] - 1, self.tokens[dense].long()] = self.mass[dense]

    def add_lists(self, probabilities: Tensor, numbers: Tensor, weight: Tensor) -> None:
        """probabilities (m, N) += weight · mass(context, ·) of those contexts with these numbers that are lists."""
        sizes = self.sizes.index_select(0, numbers)
        entries = int(sizes.sum()) if self.has_lists else 0
        if not entries:
            return
        row = torch.arange(len(numbers), device=sizes.device).repeat_interleave(sizes, output_size=entries)
        shift = self.begins.index_select(0, numbers) - (sizes.cumsum(0) - sizes)
        entry = torch.arange(entries, device=row.device) + shift.index_select(0, row)  # of each n-gram of each row
        place = row * self.vocabulary + self.tokens.index_select(0, entry)
        mass = self.mass.index_select(0, entry) * weight.index_select(0, row)
        probabilities.view(-1).index_add_(0, place, mass)


class Part:
    """One view's Kneser–Ney model, ready to give whole log-distributions."""

    def __init__(self, view: View, counts: NgramCounts, classes: Tensor | None):
        self.view, self.classes = view, classes
        self.model = KneserNey(counts)
        self.unigram = self.model.unigram.clamp(min=1e-30).float()  # markers are never predicted, but have a logarithm
        self.tables = [LevelTable(level, counts.vocabulary) for level in reversed(self.model.levels)]
        none = counts.counts[:0]  # the tables hold all of a level but its contexts
        self.model.levels = [replace(level, ngrams=none, mass=none, offsets=none) for level in self.model.levels]
        rows = [self.unigram[None]]  # and the dense rows of all levels, one after the other
        for table in self.tables:
            table.row[table.row > 0] += sum(map(len, rows)) - 1
            rows.append(table.rows)
            del table.rows
        self.rows = torch.cat(rows)

    def log_distribution(self, window: Tensor, out: Tensor | None = None) -> Tensor:
        """log p_v(· | context) for windows (m, lookback), nearest token last: (m, N)."""
        seen = [window[:, -distance] for distance in self.view.distances]
        if self.classes is not None:
            seen = [self.classes.index_select(0, tokens) for tokens in seen]
        matches = self.model.matches(seen)
        numbers = [number for _, number in matches]  # longest contexts first, as the tables
        weights = [self.unigram.new_ones(len(window))]
        for table, number in zip(self.tables, numbers, strict=True):
            weights.append(weights[-1] * table.backoff.index_select(0, number))
        rows = [table.row.index_select(0, number) for table, number in zip(self.tables, numbers, strict=True)]
        index = torch.stack([*rows, torch.zeros_like(rows[0])], dim=1)  # at last the unigrams
        weight = torch.stack(weights, dim=1)
        weight[:, :-1].masked_fill_(index[:, :-1] == 0, 0)  # no dense row
        probabilities = embedding_bag(index, self.rows, per_sample_weights=weight, mode="sum")
        for table, number, share in zip(self.tables, numbers, weights[:-1], strict=True):
            table.add_lists(probabilities, number, share)
        return torch.log(probabilities, out=probabilities if out is None else out)


class Product:
    """The calibrated product, with the manners of a `Network`: targets in, logits over the vocabulary out."""

    def __init__(
        self, config: SaffuConfig, counts: ViewCounts, classes: dict[str, Tensor], prior: Tensor, exponents: Tensor
    ):
        self.config, self.counts, self.classes, self.exponents = config, counts, classes, exponents
        self.prior = prior  # (N,) log f
        self.vocabulary = len(prior)
        self.device = prior.device

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

    def windows(self, targets: Targets) -> Tensor:
        """The tokens before each target, nearest last; `<sod>` before the first, `<pad>` before that."""
        distance = torch.arange(self.lookback, 0, -1, device=targets.past.device)
        window = look_up(targets.past, targets.at[:, None] - distance).long()
        window.masked_fill_(distance > targets.positions[:, None], PAD)
        return window.masked_fill_(distance == targets.positions[:, None] + 1, SOD)

    def features(self, targets: Targets) -> Tensor:
        """What the exponents weigh, (n, 1 + views, N): log f, and for each view log p, less log f for a slot."""
        window = self.windows(targets)
        features = self.prior.new_empty(1 + len(self.parts), len(window), self.vocabulary)
        features[0] = self.prior
        for part, feature in zip(self.parts, features[1:], strict=True):
            part.log_distribution(window, out=feature)
            if part.view.is_slot:
                feature -= self.prior
        return features.transpose(0, 1)

    def calibration(self, corpus: TokenCorpus) -> Batches:
        """Features and targets as calibration takes them, again and again; a GPU has room to keep them."""
        if self.device.type == "cuda":
            kept = list(self._calibration(corpus))
            return lambda: kept
        return lambda: self._calibration(corpus)

    def _calibration(self, corpus: TokenCorpus) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of features and targets; the markers below `<eod>` are left out."""
        with tqdm(total=corpus.targets, desc="calibrate", unit=" tokens", disable=None, leave=False) as bar:
            for targets in corpus.batches(ROWS[self.device.type] // 4, self.lookback):
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
        return ROWS[self.device.type]

    def references(self) -> NgramCounts | None:
        """Trigram counts, which the memory holds if it is long enough."""
        memory = self.counts.stored.get("memory")
        return None if memory is None or memory.order < 3 else memory.shortened(3).to("cpu")

    def frequencies(self) -> Tensor:
        """How often each token is a target, (N,), float64: every stored n-gram ends with one."""
        counts = next(iter(self.counts.stored.values()))
        targets = counts.columns()[-1]
        return torch.bincount(targets, weights=counts.counts.double(), minlength=self.vocabulary).cpu()

    def to(self, device: torch.device | str) -> "Product":
        """The same on another device; its views are solved there."""
        prior = self.prior.to(device)
        if prior is self.prior:
            return self
        classes = {name: classes.to(device) for name, classes in self.classes.items()}
        return Product(self.config, self.counts.to(device), classes, prior, self.exponents)

    def parameter_count(self) -> int:
        """Distinct counts kept, classes, prior and exponents."""
        kept = sum(counts.distinct for counts in self.counts.stored.values())
        return kept + sum(c.numel() for c in self.classes.values()) + self.vocabulary + len(self.exponents)

    def state_dict(self) -> dict[str, Tensor]:
        """All that the model is, to be stored."""
        state = {"exponents": self.exponents, "prior": self.prior}
        state |= {f"classes.{name}": classes.int() for name, classes in self.classes.items()}
        for name, counts in self.counts.stored.items():
            state |= {f"counts.{name}.{key}": tensor for key, tensor in counts.tensors().items()}
        return state

    @classmethod
    def from_state(cls, config: SaffuConfig, state: dict[str, Tensor]) -> "Product":
        views = views_of(config)
        classes = {name[8:]: classes.long() for name, classes in state.items() if name.startswith("classes.")}
        stored = {
            view.name: NgramCounts.from_tensors(
                {key: state[f"counts.{view.name}.{key}"] for key in ("shape", "keys", "counts")}
            )
            for view in views
            if f"counts.{view.name}.keys" in state
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


def fit_product(
    config: SaffuConfig,
    corpus: TokenCorpus,
    vocabulary: int,
    counts: ViewCounts | None = None,
    device: torch.device | str = "cpu",
) -> Product:
    """Count everything, if that is not done; calibrate on held-out documents, their counts subtracted; keep all."""
    held_out = corpus.every(HELD_OUT if corpus.documents >= 20 * HELD_OUT else 5)
    corpus = corpus.to(device)
    counts = counts.to(device) if counts else ViewCounts.count(corpus, config, vocabulary)
    frequencies = corpus.frequencies(vocabulary)
    prior = log_prior(frequencies)
    names = [view.name for view in views_of(config)]
    exponents = torch.tensor([0.0 if "memory" in names else 1.0, *(0.7 if n == "memory" else 0.1 for n in names)])
    known = counts
    if held_out.documents < corpus.documents:
        known = counts - ViewCounts.count(held_out.to(device), config, vocabulary)
    classes = {}
    if config.memory > 1 and config.classes > 1:
        vectors = token_vectors(known.stored["memory"])
        coarse = [view for view in views_of(config) if view.classes]
        classes = {view.name: token_classes(vectors, frequencies, view.classes) for view in coarse}
    if known is not counts:
        trial = Product(config, known, classes, prior, exponents)
        few, many = (trial.calibration(held_out.thinned(n).to(device)) for n in CALIBRATION_TARGETS)
        exponents = calibrated_exponents(few, exponents, tolerance=1e-3).double()
        # From so near, one step on many targets arrives: what is left is the square of the way.
        exponents = (exponents + newton_step(exponents, moments(many(), exponents))).clamp(min=0).float()
        del trial, known, few, many  # before the same is built of all counts
    return Product(config, counts, classes, prior, exponents)
