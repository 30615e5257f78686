"""The calibrated model: a product of counted views, decided class first and then token.

The paper's closed form is naive Bayes: every slot of a context votes with full weight, though slots repeat each other.
Here each part of the context that is worth counting is a *view*, a Kneser–Ney model p_v of what it sees:

    slots      one token at a distance k: the paper's radial unit, one-hot, decoded straight to the vocabulary
    memory     the nearest tokens together, up to `order` − 1 of them
    classes    the same tokens, some or all of them known by their class, so that what one word taught helps its kin

and the model is their product, each raised to an exponent that was measured on text the counts had not seen. Tokens
have classes k(n), and both factors of p(n | c) = p(k(n) | c) · p(n | k(n), c) are such products, each with its own
exponents:

    log p(k | c)    = γ log f_k + Σ_slots a_v log(p_v(k | c)/f_k) + Σ_others a_v log p_v(k | c) − log Z
    log p(n | k, c) = γ' log f_n + Σ_slots b_v log(p_v(n | c)/f_n) + Σ_others b_v log p_v(n | c) − log Z_k

where p_v(k | c) = Σ_{n∈k} p_v(n | c). A slot is divided by the prior f, so one that says nothing adds nothing. How much
of its context a view has seen, and with how many followers, chooses among its exponents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from saffu.calibrated.classes import token_vectors
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.explain import explain
from saffu.calibrated.kernels import Array, library, pointer
from saffu.calibrated.kneser_ney import Table, in_chunks
from saffu.calibrated.layout import NativeModel, Ranks, exponent_slices
from saffu.calibrated.ngrams import checked_ids
from saffu.calibrated.views import CalibratedSums, views_of
from saffu.errors import SaffuError
from saffu.interface import Arrays, Explanation, Floats
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD

DocumentState = tuple[int, bytes]
"""How many tokens a document has so far, and the last of them, as two bytes each."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """What is fitted once, and left alone by whatever is counted later."""

    output_classes: Array  # (N,) uint16
    context_classes: dict[int, Array]  # (N,) uint16, by how many classes there are
    class_exponents: Floats  # (J,) of the prior and the views, as `exponent_slices` orders them
    token_exponents: Floats  # (J,)

    def arrays(self) -> dict[str, Array]:
        stored = {f"context_classes.{number}": classes for number, classes in self.context_classes.items()}
        stored |= {"output_classes": self.output_classes}
        return stored | {"class_exponents": self.class_exponents, "token_exponents": self.token_exponents}

    @classmethod
    def from_arrays(cls, config: CalibratedConfig, arrays: Arrays) -> Encoder:
        views = views_of(config)
        classes = {view.classes: arrays[f"context_classes.{view.classes}"] for view in views if view.classes}
        encoder = cls(arrays["output_classes"], classes, arrays["class_exponents"], arrays["token_exponents"])
        exponents = exponent_slices(views)[-1].stop
        vocabulary = len(encoder.output_classes)
        sound = all(
            c.shape == (vocabulary,) and c.dtype == np.uint16 for c in [encoder.output_classes, *classes.values()]
        )
        sound = sound and all(int(c.max()) < vocabulary for c in [encoder.output_classes, *classes.values()])
        sound = sound and set(np.unique(encoder.output_classes[EOD:])) == set(
            range(int(encoder.output_classes.max()) + 1)
        )
        sound = sound and encoder.class_exponents.shape == encoder.token_exponents.shape == (exponents,)
        if not sound:
            raise SaffuError("the model's classes or exponents are damaged; restore the folder or train again")
        return encoder


class CalibratedModel:
    """A fitted calibrated model; see `saffu.interface.Model`."""

    def __init__(
        self,
        config: CalibratedConfig,
        encoder: Encoder,
        tables: Sequence[Table],
        frequencies: Array,
        counts: int,
        sums: CalibratedSums | None,
    ):
        self.config, self.encoder, self.tables, self.frequencies = config, encoder, list(tables), frequencies
        self.counts, self.sums = counts, sums  # how many distinct counts there are, and those counts
        self.views = views_of(config)
        self.vocabulary = len(frequencies)

    @classmethod
    def from_sums(cls, config: CalibratedConfig, encoder: Encoder, sums: CalibratedSums) -> CalibratedModel:
        """The model with this encoder that follows from these counts."""
        ranks, tables = Ranks(encoder.output_classes), []
        for view in views_of(config):
            classes = encoder.context_classes[view.classes] if view.classes else None
            tables.append(Table.solve(sums.of(view, classes), view.distances, ranks.ranks, config.prune))
        counts = sums.memory.distinct + sum(pairs.distinct for pairs in sums.pairs.values())
        return cls(config, encoder, tables, sums.memory.frequencies(), counts, sums)

    @cached_property
    def ranks(self) -> Ranks:
        return Ranks(self.encoder.output_classes)

    @cached_property
    def native(self) -> NativeModel:
        """Laid out for kernels when first asked for."""
        encoder = self.encoder
        return NativeModel(
            self.views, self.tables, self.ranks, self.frequencies, encoder.context_classes, encoder.class_exponents,
            encoder.token_exponents,
        )  # fmt: skip

    @property
    def lookback(self) -> int:
        """How many tokens before a target can change its prediction."""
        return max(distance for view in self.views for distance in view.distances)

    def log_probabilities(self, corpus: TokenCorpus, progress: str | None = None) -> Floats:
        """ln p of every target, (targets,)."""
        return self._scored(corpus, progress, None)

    def log_probabilities_and_certainty(self, corpus: TokenCorpus, progress: str | None = None) -> tuple[Floats, Array]:
        """Also how sure the model was, whatever the target: (targets, 2), entropy and largest ln p of the classes."""
        certainty = np.empty((corpus.targets, 2), dtype=np.float32)
        return self._scored(corpus, progress, certainty), certainty

    def _scored(self, corpus: TokenCorpus, progress: str | None, certainty: Array | None) -> Floats:
        ids, structure = checked_ids(corpus, self.vocabulary), self.native.structure

        def kernel(starts: Array, lo: int, hi: int, out: Array) -> None:
            part = None if certainty is None else certainty[lo:hi]
            library.saffu_score(
                structure, pointer(ids, np.uint16), pointer(starts, np.int64), corpus.documents, lo, hi,
                pointer(out, np.float64), pointer(part, np.float32),
            )  # fmt: skip

        return in_chunks(kernel, corpus, progress)

    def start(self, context: Iterable[int] = ()) -> DocumentState:
        """The state of a document that begins with these tokens."""
        tokens = np.array(list(context), dtype=np.int64)
        if len(tokens) and not EOD <= tokens.min() <= tokens.max() < self.vocabulary:
            raise SaffuError(
                f"a context holds ids outside {EOD} to {self.vocabulary - 1}; encode it with this tokenizer"
            )
        return len(tokens), tokens.astype(np.uint16)[-self.lookback :].tobytes()

    def advance(self, state: DocumentState, token: int) -> DocumentState:
        """The state after one more token."""
        age, tail = state
        return age + 1, (tail + int(token).to_bytes(2, "little"))[-2 * self.lookback :]

    def next_log_probabilities(self, states: Sequence[DocumentState]) -> Array:
        """ln p of every token after each state, (states, N) float32; −inf for the markers."""
        return self.next_log_probabilities_and_certainty(states)[0]

    def next_log_probabilities_and_certainty(self, states: Sequence[DocumentState]) -> tuple[Array, Array]:
        """Also how sure the model is, (states, 2): entropy and largest ln p of the classes."""
        out = np.empty((len(states), self.vocabulary), dtype=np.float32)
        certainty = np.empty((len(states), 2), dtype=np.float32)
        for (age, tail), row, sure in zip(states, out, certainty, strict=True):
            end = np.frombuffer(tail, dtype=np.uint16).ctypes.data + len(tail)
            library.saffu_distribution(
                self.native.structure, end, age, pointer(row, np.float32), pointer(sure, np.float32)
            )
        return out, certainty

    def sample(self, state: DocumentState, rng: np.random.Generator) -> tuple[int, DocumentState]:
        """A token drawn from the distribution after a state, and the state after it."""
        age, tail = state
        address = np.frombuffer(tail, dtype=np.uint16).ctypes.data + len(tail)
        token = library.saffu_sample(self.native.structure, address, age, rng.random(), rng.random())
        return token, self.advance(state, token)

    def explain(self, context: Sequence[int]) -> Explanation:
        """What each view adds to ln p of every token; the terms add up exactly."""
        return explain(self, context)

    def vectors(self) -> dict[str, Array]:
        """Token vectors by the company that tokens keep, (N, 100)."""
        if self.sums is None:
            raise SaffuError(
                "this model was loaded without its counts, from which vectors are made; load the whole folder"
            )
        return {"company": token_vectors(self.sums.memory)}

    def count(self, corpus: TokenCorpus) -> CalibratedSums:
        """The counts of a corpus."""
        return CalibratedSums.count(corpus, self.config, self.vocabulary)

    def solved(self, sums: CalibratedSums) -> CalibratedModel:
        """The model with this one's classes and exponents that follows from these counts."""
        return CalibratedModel.from_sums(self.config, self.encoder, sums)

    def arrays(self) -> dict[str, Array]:
        """All that is stored of the model but its counts."""
        stored = {f"encoder.{name}": array for name, array in self.encoder.arrays().items()}
        stored |= {"frequencies": self.frequencies, "counts": np.array([self.counts])}
        for number, table in enumerate(self.tables):
            stored |= {f"table {number}.{name}": array for name, array in table.arrays().items()}
        return stored

    def encoder_arrays(self) -> dict[str, Array]:
        return self.encoder.arrays()

    @classmethod
    def from_arrays(cls, config: CalibratedConfig, arrays: Arrays, sums: Arrays | None = None) -> CalibratedModel:
        """The model whose `arrays()` these are, and the counts, if given, whose `arrays()` are `sums`."""

        def part(prefix: str) -> dict[str, Array]:
            return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

        try:
            encoder, frequencies = Encoder.from_arrays(config, part("encoder.")), arrays["frequencies"]
            counts = int(arrays["counts"][0])
        except (KeyError, IndexError):
            raise SaffuError("the model's arrays do not fit its settings; restore the folder or train again") from None
        vocabulary = len(encoder.output_classes)
        if frequencies.shape != (vocabulary,) or frequencies.dtype != np.int64:
            raise SaffuError("the model's frequencies are damaged; restore the folder or train again")
        views = views_of(config)
        tables = [Table.from_arrays(part(f"table {number}."), vocabulary) for number in range(len(views))]
        if any(table.distances != view.distances for table, view in zip(tables, views, strict=True)):
            raise SaffuError("the model's tables do not fit its settings; restore the folder or train again")
        held = None if sums is None else CalibratedSums.from_arrays(config, sums)
        return cls(config, encoder, tables, frequencies, counts, held)

    @property
    def size(self) -> int:
        """Distinct counts, from which all tables follow; classes, prior and exponents."""
        encoder = sum(array.size for array in self.encoder.arrays().values())
        return self.counts + encoder + self.vocabulary
