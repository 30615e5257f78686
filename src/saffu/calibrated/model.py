"""The calibrated model: a product of counted views, decided class first and then token.

The paper's closed form is naive Bayes: every slot of a context has full weight, although slots are redundant. Here each
useful part of the context has a *view*, a Kneser–Ney model p_v of the next token given that part:

    slots      one token at a distance k: the paper's radial unit, one-hot, decoded straight to the vocabulary
    n-grams    the nearest tokens together, up to `order` − 1 of them
    classes    the same tokens, some or all of them by class, so that counts of one word help similar words

and the model is their product, each raised to an exponent fitted on text that the counts had not seen. Tokens
have classes k(n), and both factors of p(n | c) = p(k(n) | c) · p(n | k(n), c) are such products, each with its own
exponents:

    log p(k | c)    = γ log f_k + Σ_slots a_v log(p_v(k | c)/f_k) + Σ_others a_v log p_v(k | c) − log Z
    log p(n | k, c) = γ' log f_n + Σ_slots b_v log(p_v(n | c)/f_n) + Σ_others b_v log p_v(n | c) − log Z_k

where p_v(k | c) = Σ_{n∈k} p_v(n | c). A slot is divided by the prior f, so an uninformative slot adds nothing. The
exponent of a view depends on how much of its context it has seen, and with how many followers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from saffu.calibrated import kernels, storage
from saffu.calibrated.classes import token_vectors
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.explain import explain
from saffu.calibrated.kernels import TOKEN, Array, library, pointer
from saffu.calibrated.kneser_ney import Ranks, Table, in_chunks, log_prior
from saffu.calibrated.ngrams import NgramCounts, checked_ids
from saffu.calibrated.reading import Reader, Readers, initial_learning, read_corpus
from saffu.calibrated.tempered import Prediction, sample_at
from saffu.calibrated.views import (
    CalibratedSums,
    View,
    first_remembered,
    memory_arrays,
    memory_contexts,
    views_of,
)
from saffu.errors import SaffuError
from saffu.files import part_of
from saffu.format import progress_bar
from saffu.interface import Arrays, Capabilities, Explanation, Floats, State, document_of
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD

TRIES = 4  # of drawing one of the most likely tokens in one call of the kernel
Document = tuple[int, bytes, bytes]
"""How many tokens a document has so far; the last of them, as two bytes each; what was learned from it."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """What is fitted once and stays unchanged when more text is counted."""

    output_classes: Array  # (N,) uint16
    context_classes: dict[int, Array]  # (N,) uint16, by how many classes there are
    plain: Floats  # (2, J) exponents of classes and of tokens, as `exponent_slices` orders them
    memory: Floats  # (2, J) exponents of the parts of the memory, as `memory_slices` orders them
    views: tuple[View, ...]

    def arrays(self) -> dict[str, Array]:
        stored = {f"context_classes.{number}": classes for number, classes in self.context_classes.items()}
        return stored | {"output_classes": self.output_classes, "plain": self.plain, "memory": self.memory}

    @classmethod
    def from_arrays(cls, config: CalibratedConfig, vocabulary: int, arrays: Arrays) -> Encoder:
        views = tuple(views_of(config))
        sizes = {view.classes for view in views} | {context.classes for context in memory_contexts(config)}
        classes = {size: arrays[f"context_classes.{size}"] for size in sorted(sizes - {0}, reverse=True)}
        exponents = arrays["plain"], arrays["memory"]
        shapes = {own.shape for own in (arrays["output_classes"], *classes.values())}
        if shapes != {(vocabulary,)} or any(own.shape[:1] != (2,) or own.ndim != 2 for own in exponents):
            raise SaffuError("the model's classes are damaged or of other settings; restore the folder or train again")
        return cls(arrays["output_classes"], classes, arrays["plain"], arrays["memory"], views)


class CalibratedModel(Capabilities):
    """A fitted calibrated model; see `saffu.interface.Model`."""

    def __init__(
        self,
        config: CalibratedConfig,
        encoder: Encoder,
        tables: Sequence[Table],
        frequencies: Array,
        counts: int,
        sums: CalibratedSums | Callable[[], CalibratedSums] | None,
    ):
        """`counts`: the number of distinct counts; `sums`: these counts, or a function that reads them when needed."""
        self.config = config
        self.encoder = encoder
        self.tables = list(tables)
        self.frequencies = frequencies
        self.counts = counts
        self._sums = sums
        self.views = encoder.views
        self.vocabulary = len(frequencies)
        self.stream: Reader | None = None  # of all documents, if they are read online

    @classmethod
    def from_sums(
        cls, config: CalibratedConfig, encoder: Encoder, sums: CalibratedSums, progress: str | None = None
    ) -> CalibratedModel:
        """The model with this encoder that follows from these counts."""
        ranks = Ranks(encoder.output_classes)
        tables = []
        frequencies = sums.ngrams.frequencies()
        prior = np.exp(log_prior(frequencies, ranks))
        with progress_bar(progress, len(encoder.views), " tables") as bar:
            for view in bar.through(reversed(encoder.views)):  # the largest intermediate counts while tables are few
                classes = encoder.context_classes[view.classes] if view.classes else None
                unigram = prior if view.is_slot else None  # so that an unseen slot is uninformative
                tables.append(Table.solve(sums.of(view, classes), view.distances, ranks.ranks, config.prune, unigram))
        tables.reverse()
        counts = sums.ngrams.distinct + sum(pairs.distinct for pairs in sums.pairs.values())
        return cls(config, encoder, tables, frequencies, counts, sums)

    @property
    def sums(self) -> CalibratedSums | None:
        if callable(self._sums):
            self._sums = self._sums()
        return self._sums

    def with_sums(self, sums: CalibratedSums | None) -> CalibratedModel:
        """The same model with other counts, or without any."""
        return CalibratedModel(self.config, self.encoder, self.tables, self.frequencies, self.counts, sums)

    def without_counts(self) -> CalibratedModel:
        return self.with_sums(None)

    can_sample = True

    @property
    def counted_part(self) -> CalibratedModel:
        return self

    @property
    def ngrams(self) -> NgramCounts | None:
        return None if self.sums is None else self.sums.ngrams

    @property
    def hidden_size(self) -> int:
        return self.ranks.number

    def hidden(self, states: Sequence[State]) -> Array:
        """max(0, log(p(k | context) / f_k)) for each class k of the next token."""
        order = self.ranks.tokens[: self.ranks.predicted]
        prior = self.ranks.by_class(self.frequencies[order] + 1.0)  # a class may have no counts
        p = self.ranks.by_class(np.exp(self.next_log_probabilities(states)[:, order]))
        return np.asarray(np.log(np.maximum(p / (prior / prior.sum()), 1)), dtype=np.float32)

    def hidden_vectors(self) -> Array:
        return self.vectors()["company"]

    @cached_property
    def ranks(self) -> Ranks:
        return Ranks(self.encoder.output_classes)

    def kernel_arrays(self) -> dict[str, Array]:
        """The arrays that kernels make a model of, by name."""
        arrays = self.encoder.arrays() | memory_arrays(self.config) | {"frequencies": self.frequencies}
        for number, (view, table) in enumerate(zip(self.views, self.tables, strict=True)):
            arrays[f"view {number}"] = np.array([view.classes, view.exact], dtype=np.int32)
            arrays |= {f"table {number}.{name}": array for name, array in table.arrays().items()}
        return arrays

    @cached_property
    def checked(self) -> kernels.Model:
        """The model as kernels have it, with all arrays checked."""
        return kernels.Model(self.kernel_arrays())

    @cached_property
    def native(self) -> kernels.Model:
        """That, ready to read fast: with sums by class, which take room, on first use."""
        model = self.checked
        room = model.arrays["room"] = storage.empty(library.saffu_room(model), np.uint8)
        library.saffu_fill(model, pointer(room, np.uint8))
        return model

    def followers(self) -> tuple[Array, Array]:
        """Where the tokens that follow each token begin (N + 1,), and these tokens, one after the other."""
        number = next(n for n, view in enumerate(self.views) if view.is_whole(self.config.order))
        pairs = self.tables[number].levels[0]
        return pairs["begin"], self.ranks.tokens[pairs["follow"]]

    @cached_property
    def lookback(self) -> int:
        """How many tokens before a target the views can see."""
        return max(distance for view in self.views for distance in view.distances)

    def log_probabilities(self, corpus: TokenCorpus, progress: str | None = None) -> Floats:
        return self._scored(corpus, progress, None)

    def log_probabilities_and_certainty(self, corpus: TokenCorpus, progress: str | None = None) -> tuple[Floats, Array]:
        """Also the model's certainty, whatever the target: (targets, 2), entropy and largest ln p of the classes."""
        certainty = np.empty((corpus.targets, 2), dtype=np.float32)
        return self._scored(corpus, progress, certainty), certainty

    def _scored(self, corpus: TokenCorpus, progress: str | None, certainty: Array | None) -> Floats:
        if self.config.cache:
            return read_corpus(self.native, self.ranks, corpus, progress, certainty, self.stream)
        ids = checked_ids(corpus, self.vocabulary)
        native = self.native  # laid out before threads need it

        def kernel(starts: Array, lo: int, hi: int, out: Array) -> None:
            part = None if certainty is None else certainty[lo:hi]
            library.saffu_score(
                native, pointer(ids, TOKEN), pointer(starts, np.int64), corpus.documents, lo, hi,
                pointer(out, np.float64), pointer(part, np.float32),
            )  # fmt: skip

        return in_chunks(kernel, corpus, progress)

    @cached_property
    def _readers(self) -> Readers:
        return Readers(self.native)

    def start(self, context: Iterable[int] = ()) -> State:
        if self.stream is not None:
            raise SaffuError("online, there are no states, which `words` need; score lines or tokens, or omit `online`")
        tokens = np.array(list(context), dtype=np.int64)
        if len(tokens) and not EOD <= tokens.min() <= tokens.max() < self.vocabulary:
            raise SaffuError(
                f"a context holds ids outside {EOD} to {self.vocabulary - 1}; encode it with this tokenizer"
            )
        learned = initial_learning(self.encoder.memory) if self.config.cache else np.zeros(0, dtype=np.float32)
        return self._read((0, b"", learned.tobytes()), tokens.astype(TOKEN))

    def advance(self, state: State, token: int) -> State:
        if not EOD <= token < self.vocabulary:
            raise SaffuError(
                f"token {token} is outside {EOD} to {self.vocabulary - 1}; encode text with this tokenizer"
            )
        return self._read(document_of(self, state), np.array([token], dtype=TOKEN))

    def _read(self, document: Document, tokens: Array) -> State:
        """The state after more tokens of a document."""
        age, tail, learned = document
        longer = np.frombuffer(tail + tokens.tobytes(), dtype=TOKEN)
        after = np.frombuffer(learned, np.float32).copy()
        if self.config.cache and len(tokens):
            with self._readers.reader() as reader:
                library.saffu_read(
                    reader.handle, pointer(longer, TOKEN), len(longer), age + len(tokens),
                    len(longer) - len(tokens), pointer(after, np.float32),
                )  # fmt: skip
        return State(self, (age + len(tokens), self._tail(longer, age + len(tokens)), after.tobytes()))

    def _tail(self, tokens: Array, age: int) -> bytes:
        """Those of the last tokens of a document that can affect a prediction."""
        remembered = age - first_remembered(self.config.cache, age) if self.config.cache else 0
        return tokens[-max(remembered, self.lookback) :].tobytes()

    def next_log_probabilities(self, states: Sequence[State]) -> Array:
        return self.next_log_probabilities_and_certainty(states)[0]

    def next_log_probabilities_and_certainty(self, states: Sequence[State]) -> tuple[Array, Array]:
        """Also the model's certainty, (states, 2): entropy and largest ln p of the classes."""
        out = np.empty((len(states), self.vocabulary), dtype=np.float32)
        certainty = np.empty((len(states), 2), dtype=np.float32)
        for state, row, sure in zip(states, out, certainty, strict=True):
            with self._readers.at(document_of(self, state)) as (reader, *document):
                library.saffu_distribution(
                    reader.handle, *document, pointer(row, np.float32), pointer(sure, np.float32)
                )
        return out, certainty

    def certainty(self, state: State) -> Array:
        """The model's certainty after one state, (2,)."""
        out = np.empty(2, dtype=np.float32)
        with self._readers.at(document_of(self, state)) as (reader, *document):
            library.saffu_certainty(reader.handle, *document, pointer(out, np.float32), None)
        return out

    @contextmanager
    def prediction(self, state: State) -> Iterator[tuple[Prediction, Array]]:
        """The prediction after a state, class by class, and the model's certainty (2,)."""
        classes = np.empty(self.ranks.number, dtype=np.float32)
        certainty = np.empty(2, dtype=np.float32)
        with self._readers.at(document_of(self, state)) as (reader, *document):
            library.saffu_certainty(
                reader.handle, *document, pointer(certainty, np.float32), pointer(classes, np.float32)
            )

            def tokens(k: int) -> Array:
                out = np.empty(self.ranks.sizes[k], dtype=np.float32)
                library.saffu_members(reader.handle, k, pointer(out, np.float32))
                return out

            yield Prediction(classes, tokens), certainty

    def sampled_at(self, temperature: float, top_k: int, prediction: Prediction, rng: np.random.Generator) -> int:
        """A token from a prediction class by class."""
        k, place = sample_at(temperature, top_k, prediction, self.ranks.sizes, rng)
        return int(self.ranks.tokens[self.ranks.first[k] + place])

    def sample(
        self, state: State, rng: np.random.Generator, temperature: float = 1.0, top_k: int = 0
    ) -> tuple[int, State]:
        top_k = max(0, min(top_k, self.vocabulary))  # which kernels take in 32 bits
        if temperature != 1:
            with self.prediction(state) as (prediction, _):
                drawn = self.sampled_at(temperature, top_k, prediction, rng)
            return drawn, self.advance(state, drawn)
        age, tail, learned = document_of(self, state)
        tokens = np.frombuffer(tail, TOKEN)
        after = np.frombuffer(learned, np.float32).copy()
        tries = TRIES if top_k else 1
        token = -1
        with self._readers.reader() as reader:
            while token < 0:
                uniform = rng.random(2 * tries)
                token = library.saffu_sample(
                    reader.handle, pointer(tokens, TOKEN), len(tokens), age, pointer(after, np.float32),
                    pointer(uniform, np.float64), tries, top_k,
                )  # fmt: skip
        longer = np.frombuffer(tail + TOKEN(token).tobytes(), TOKEN)
        return token, State(self, (age + 1, self._tail(longer, age + 1), after.tobytes()))

    def without_memory(self) -> CalibratedModel:
        """The same model without a memory, made once: it has kernels of its own, which take time to lay out."""
        if not self.config.cache:
            return self
        if "bare" not in vars(self):
            config = replace(self.config, cache=0)
            made = CalibratedModel(config, self.encoder, self.tables, self.frequencies, self.counts, self._sums)
            vars(self).setdefault("bare", made)  # in one step: all threads get the same
        bare: CalibratedModel = vars(self)["bare"]
        return bare

    def online(self) -> CalibratedModel:
        """The same model, which remembers all documents that it has scored, also those of earlier calls."""
        if not self.config.cache:
            raise SaffuError("this model has no memory of a document (`cache` is 0), so it cannot read online")
        model = CalibratedModel(self.config, self.encoder, self.tables, self.frequencies, self.counts, self._sums)
        model.stream = Reader(model.native, is_online=True)
        return model

    def explain(self, context: Sequence[int]) -> Explanation:
        """What each view adds to ln p of every token; the terms add up exactly."""
        self.start(context)  # rejects invalid tokens
        return explain(self, context)

    def vectors(self) -> dict[str, Array]:
        """Token vectors by the company that tokens keep, (N, 100)."""
        if self.sums is None:
            raise SaffuError(
                "vectors are made from counts, which exports do not have; use the model that `saffu train` saved"
            )
        return {"company": token_vectors(self.sums.ngrams)}

    def count(self, corpus: TokenCorpus) -> CalibratedSums:
        return CalibratedSums.count(corpus, self.config, self.vocabulary, views=self.views)

    def solved(self, sums: CalibratedSums) -> CalibratedModel:
        return CalibratedModel.from_sums(self.config, self.encoder, sums)

    def arrays(self) -> dict[str, Array]:
        stored = {f"encoder.{name}": array for name, array in self.encoder.arrays().items()}
        stored |= {"frequencies": self.frequencies, "counts": np.array([self.counts])}
        for number, table in enumerate(self.tables):
            stored |= {f"table {number}.{name}": array for name, array in table.arrays().items()}
        return stored

    def encoder_arrays(self) -> dict[str, Array]:
        return self.encoder.arrays()

    @classmethod
    def from_arrays(
        cls, config: CalibratedConfig, vocabulary: int, arrays: Arrays, sums: Arrays | None = None
    ) -> CalibratedModel:
        """The model whose `arrays()` these are, and the counts, if given, whose `arrays()` are `sums`."""
        try:
            encoder = Encoder.from_arrays(config, vocabulary, part_of(arrays, "encoder."))
            frequencies = arrays["frequencies"]
            counts = int(arrays["counts"][0])
        except (KeyError, IndexError):
            raise SaffuError("the model's arrays do not fit its settings; restore the folder or train again") from None
        views = encoder.views
        if sums is not None and not any(name.startswith("table ") for name in arrays):  # a compact folder
            return cls.from_sums(
                config, encoder, CalibratedSums.from_arrays(config.order, vocabulary, views, sums), "solve"
            )
        tables = [Table.from_arrays(part_of(arrays, f"table {number}.")) for number in range(len(views))]
        fits = all(table.distances == view.distances for table, view in zip(tables, views, strict=True))
        if counts < 0 or frequencies.ndim != 1 or not fits:
            raise SaffuError("the model's tables are damaged or of other settings; restore the folder or train again")
        read_sums = None if sums is None else partial(CalibratedSums.from_arrays, config.order, vocabulary, views, sums)
        model = cls(config, encoder, tables, frequencies, counts, read_sums)
        model.checked = kernels.Model(model.kernel_arrays())  # now, before anything follows damaged offsets
        return model

    @property
    def size(self) -> int:
        """The number of distinct counts, from which all tables follow, of classes, prior, and exponents."""
        encoder = sum(array.size for array in self.encoder.arrays().values())
        return self.counts + encoder + self.vocabulary
