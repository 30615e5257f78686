"""The mixture as a model: p = g·p_trained + (1 − g)·p_counted. Without a network it is the counted model.

Nothing here needs torch, unless a model is on a GPU: there, torch scores text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.tempered import mixed
from saffu.calibrated.views import CalibratedSums
from saffu.companion.config import CompanionConfig
from saffu.companion.kernels import mixture
from saffu.companion.networks import Networks, log_weights
from saffu.companion.neural_cache import NeuralCache
from saffu.companion.rows import ages_of, gate_inputs
from saffu.companion.weights import PREFIX
from saffu.companion.window import Memory, Window, moved, read, window_of
from saffu.errors import SaffuError
from saffu.files import part_of
from saffu.interface import Array, Arrays, Capabilities, Explanation, Floats, State, Term, document_of
from saffu.text.corpus import TokenCorpus

Document = tuple[State, int, Window]
"""The counted model's state, the number of tokens of the document so far, and the network's window."""


@dataclass(frozen=True, eq=False)
class CompanionSums:
    """The counted model's counts. Text can be added; removing text needs a model without a network."""

    counts: CalibratedSums
    trained: bool

    def __add__(self, other: CompanionSums) -> CompanionSums:
        return replace(self, counts=self.counts + other.counts)

    def __sub__(self, other: CompanionSums) -> CompanionSums:
        if self.trained:
            raise SaffuError(
                "the network of this model was trained on the text and cannot forget it; use `drop_network` to keep "
                "only the counts, or train again"
            )
        return replace(self, counts=self.counts - other.counts)

    @property
    def ngrams(self) -> NgramCounts:
        return self.counts.ngrams

    def arrays(self) -> Arrays:
        return self.counts.arrays()


class CompanionModel(Capabilities):
    """A counted model and, once trained, the network next to it; see `saffu.interface.Model`."""

    def __init__(
        self,
        config: CompanionConfig,
        counted: CalibratedModel,
        networks: Networks | None,
        device: str = "cpu",
        cache: NeuralCache | None = None,
    ) -> None:
        """`device`: where a network is trained, and text scored; `cache`: of all documents, if they are read online."""
        self.config = config
        self.counted = counted
        self.networks = networks
        self.device = device
        self.cache = cache
        self.vocabulary = counted.vocabulary

    can_sample = True

    @property
    def has_network(self) -> bool:
        return self.networks is not None

    @property
    def has_int8_weights(self) -> bool:
        return self.networks is not None and self.networks.weights[0].is_rounded

    @property
    def counted_part(self) -> CalibratedModel:
        return self.counted

    @property
    def ngrams(self) -> NgramCounts | None:
        return self.counted.ngrams

    @property
    def hidden_size(self) -> int:
        return self.counted.hidden_size if self.networks is None else self.networks.width

    def hidden_vectors(self) -> Array | None:
        return self.counted.hidden_vectors() if self.networks is None else None

    @property
    def frequencies(self) -> Array:
        return self.counted.frequencies

    @property
    def sums(self) -> CompanionSums | None:
        return None if self.counted.sums is None else CompanionSums(self.counted.sums, self.networks is not None)

    def with_parts(self, **parts: Any) -> CompanionModel:
        """The same model with another config, counted model, or networks."""
        names = ("config", "counted", "networks", "device", "cache")
        return CompanionModel(**{name: getattr(self, name) for name in names} | parts)

    def without_counts(self) -> CompanionModel:
        return self.with_parts(counted=self.counted.without_counts())

    def without_network(self) -> CompanionModel:
        """The counted model alone, which can forget text exactly."""
        return self.with_parts(networks=None)

    def with_int8_weights(self) -> CompanionModel | None:
        """The same model, the weights of whose networks are int8; None without a network."""
        return None if self.networks is None else self.with_parts(networks=self.networks.rounded())

    def without_memory(self) -> CompanionModel:
        """The same model, whose counted part has no memory of the document; made once, so that it knows its states."""
        if not self.config.cache:
            return self
        if "bare" not in vars(self):
            made = self.with_parts(config=replace(self.config, cache=0), counted=self.counted.without_memory())
            vars(self).setdefault("bare", made)  # in one step: all threads get the same
        bare: CompanionModel = vars(self)["bare"]
        return bare

    def online(self) -> CompanionModel:
        """Return the same model, whose counts and networks remember the documents that it has scored."""
        networks = self.networks
        cache = None if networks is None else NeuralCache(len(networks.natives), networks.natives[0].width)
        return self.with_parts(counted=self.counted.online(), cache=cache)

    def log_probabilities(self, corpus: TokenCorpus, progress: str | None = None) -> Floats:
        """ln p of every target, (targets,). Each sees at least half a window of its document, or all before it."""
        return self.scores_by_part(corpus, progress)[""]

    def scores_by_part(self, corpus: TokenCorpus, progress: str | None = None) -> dict[str, Floats]:
        """ln p of every target (targets,) by the mixture, named "", and, if there is a network, by each part alone."""
        if self.networks is None:
            return {"": self.counted.log_probabilities(corpus, progress)}
        counted, certainty = self.counted.log_probabilities_and_certainty(corpus, progress)
        certainty = gate_inputs(certainty, ages_of(corpus))
        if self.device == "cpu" or self.cache:
            scores = self.networks.score(corpus, counted, certainty, progress, self.cache)
        else:
            from saffu.companion.torch_networks import score_on_device

            scores = score_on_device(self, corpus, counted, certainty, progress)
        return {"": scores.mixture, "counted": counted, "network": scores.trained}

    def start(self, context: Iterable[int] = ()) -> State:
        """The state of a document that begins with these tokens."""
        tokens = [int(token) for token in context]
        return State(self, (self.counted.start(tokens), len(tokens), window_of(tokens, self.config.context)))

    def advance(self, state: State, token: int) -> State:
        """The state after one more token."""
        counted, age, window = document_of(self, state)
        window = moved(window, age, int(token), self.config.context)
        return State(self, (self.counted.advance(counted, token), age + 1, window))

    def next_log_probabilities(self, states: Sequence[State]) -> Array:
        """ln p of every token after each state, (states, N) float32; −inf for the markers."""
        documents = self._documents(states)
        if self.networks is None:
            return self.counted.next_log_probabilities([counted for counted, _, _ in documents])
        return np.stack([mixture(log_share, log_p) for log_share, log_p in zip(*self._parts(documents), strict=True)])

    def _documents(self, states: Iterable[State]) -> list[Document]:
        return [document_of(self, state) for state in states]

    def hidden(self, states: Sequence[State]) -> Array:
        """The networks' states after each document, side by side, (states, Σd) float32."""
        documents = self._documents(states)
        if self.networks is None:
            return self.counted.hidden([counted for counted, _, _ in documents])
        return np.stack([np.concatenate(memory.states) for memory in self._memories(documents)])

    def _memories(self, documents: Sequence[Document]) -> list[Memory]:
        assert self.networks is not None
        return read(self.networks, (window for _, _, window in documents))

    def _parts(self, documents: Sequence[Document]) -> tuple[Array, Array]:
        """The mixture after documents: ln of the weights (n, 1 + K) and ln p (n, 1 + K, N), counts first."""
        assert self.networks is not None
        counted, certainty = self.counted.next_log_probabilities_and_certainty([counted for counted, _, _ in documents])
        certainty = gate_inputs(certainty, [age for _, age, _ in documents])
        memories = self._memories(documents)
        logits = self.networks.gate_logits(np.stack([memory.logits for memory in memories], axis=1), certainty)
        log_p = np.empty((len(documents), 1 + len(self.networks.natives), self.vocabulary), dtype=np.float32)
        log_p[:, 0] = counted
        for k, native in enumerate(self.networks.natives):
            log_p[:, 1 + k] = native.log_probabilities(np.stack([memory.states[k] for memory in memories]))
        return np.ascontiguousarray(log_weights(logits).T), log_p

    def sample(
        self, state: State, rng: np.random.Generator, temperature: float = 1.0, top_k: int = 0
    ) -> tuple[int, State]:
        """A token drawn from the distribution after a state, and the state after it."""
        counted, age, window = document = document_of(self, state)
        token = None
        if self.networks is not None:
            token = self._sampled_with_network(self.networks, document, rng, temperature, top_k)
        if token is None:
            token, after = self.counted.sample(counted, rng, temperature, top_k)
        else:
            after = self.counted.advance(counted, token)
        return token, State(self, (after, age + 1, moved(window, age, token, self.config.context)))

    def _sampled_with_network(
        self, networks: Networks, document: Document, rng: np.random.Generator, temperature: float, top_k: int
    ) -> int | None:
        """A token; or None if the counts alone are to predict it, as often as they have a say."""
        (memory,) = self._memories([document])
        state, age, _ = document
        if temperature != 1 or top_k:
            with self.counted.prediction(state) as (counted, certainty):
                seen = gate_inputs(certainty[None], [age])
                weights = np.exp(log_weights(networks.gate_logits(memory.logits[:, None], seen))[:, 0])
                trained = [native.prediction(own) for native, own in zip(networks.natives, memory.states, strict=True)]
                return self.counted.sampled_at(temperature, top_k, mixed(weights, [counted, *trained]), rng)
        k = int(rng.integers(len(networks.natives)))  # each mixture of a network and the counts is equally likely
        certainty = gate_inputs(self.counted.certainty(state)[None], [age])
        logit = networks.gate_logits(memory.logits[:, None], certainty)[k, 0]
        if rng.random() > 0.5 + 0.5 * math.tanh(0.5 * logit):  # the logistic function, which cannot overflow
            return None
        return networks.natives[k].sample(memory.states[k], rng)

    def explain(self, context: Sequence[int]) -> Explanation:
        """The counted model's terms, and what the network adds to or takes from them; they add up exactly."""
        counted = self.counted.explain(context)
        if self.networks is None:
            return counted
        (log_share,), (parts,) = self._parts([self.start(context).document])  # (1 + K,), (1 + K, N)
        log_p = np.logaddexp.reduce(log_share[:, None] + parts.astype(np.float64), axis=0)  # (N,)
        predicted = np.isfinite(log_p)
        added = np.zeros(self.vocabulary)
        share = np.zeros(self.vocabulary)
        added[predicted] = log_p[predicted] - counted.log_probabilities[predicted]
        from_counts = log_share[0] + parts[0, predicted].astype(np.float64)
        share[predicted] = 1 - np.minimum(np.exp(from_counts - log_p[predicted]), 1)
        gate = 1 - float(np.exp(log_share[0]))
        seen = tuple(context)[-self.config.context :]
        terms = [*counted.terms, Term("network", added, seen, gate, reason="the trained network")]
        sides = [Term("network", share, weight=gate), Term("counts", predicted - share, weight=1 - gate)]
        return Explanation(tuple(context), terms, log_p, {**counted.details, "gate share": sides})

    def vectors(self) -> dict[str, Array]:
        """Token vectors: the network's embeddings, and those of the counted model."""
        trained = [] if self.networks is None else [weights.restored().embedding for weights in self.networks.weights]
        return self.counted.vectors() | ({"network": np.concatenate(trained, axis=1)} if trained else {})

    def count(self, corpus: TokenCorpus) -> CompanionSums:
        """The counts of a corpus."""
        return CompanionSums(self.counted.count(corpus), False)

    def solved(self, sums: CompanionSums) -> CompanionModel:
        """The model that follows from these counts; the networks stay as they are."""
        return self.with_parts(counted=self.counted.solved(sums.counts))

    def arrays(self) -> dict[str, Array]:
        """Everything that is stored of the model except its counts."""
        counted = {f"counted.{name}": array for name, array in self.counted.arrays().items()}
        return counted | ({} if self.networks is None else self.networks.arrays())

    def encoder_arrays(self) -> dict[str, Array]:
        return self.counted.encoder_arrays() | ({} if self.networks is None else self.networks.arrays())

    @classmethod
    def from_arrays(
        cls, config: CompanionConfig, vocabulary: int, arrays: Arrays, sums: Arrays | None = None, device: str = "cpu"
    ) -> CompanionModel:
        """The model whose `arrays()` these are, and the counts, if given, whose `arrays()` are `sums`."""
        counted = CalibratedModel.from_arrays(config, vocabulary, part_of(arrays, "counted."), sums)
        trained = any(name.startswith(PREFIX) for name in arrays)
        networks = Networks(arrays, config.context, counted.ranks) if trained else None
        return cls(config, counted, networks, device)

    @property
    def size(self) -> int:
        """Stored numbers of both sides."""
        return self.counted.size + (0 if self.networks is None else self.networks.size)
