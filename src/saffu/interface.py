"""The interface of every model: what evaluation, generation, updates, and folders ask of it.

Only what shows counts, or joins tokens as the text did, asks more, of the counted model in it (`counted_part`).

A model is *counted*, then *solved*: only `count` sees text, its sums add and subtract, and `solved` turns sums into a
model. So for any model

    fit      solved(count(corpus))
    update   solved(held + count(new))
    forget   solved(held − count(old))
    merge    solved(held + other)

with one encoder: everything that `solved` leaves unchanged (embeddings, attention, classes, exponents). Classes need
not inherit from these protocols, and nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.text.corpus import TokenCorpus

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Arrays = Mapping[str, Array]
S = TypeVar("S", bound="Sums")


@dataclass(frozen=True)
class State:
    """Where a document stands: all that a model remembers of its tokens so far. Hashable; never changed in place."""

    model: Model = field(repr=False)  # that made it; no other can read it
    document: Any  # hashable

    def __deepcopy__(self, _: object) -> State:
        """Return the state itself, because a copy would not belong to the model."""
        return self


def document_of(model: Model, state: State) -> Any:
    """Return what a state holds of its document. Raises SaffuError unless this very model has made the state."""
    if not isinstance(state, State) or state.model is not model:
        raise SaffuError("this is not a state of the model as it is now; begin with a state from `start` of this model")
    return state.document


class Sums(Protocol):
    """Everything a decoder follows from, summed over documents: `+` adds documents, `−` removes them."""

    def __add__(self: S, other: S) -> S: ...

    def __sub__(self: S, other: S) -> S:
        """Raises SaffuError if a count would fall below zero."""
        ...

    def arrays(self) -> Arrays:
        """What is stored, by name."""
        ...


class Capabilities(Protocol):
    """What only some models can do. A class of models inherits these defaults and overrides what its models can."""

    can_sample: bool = False  # whether `sample` is implemented

    @property
    def has_network(self) -> bool:
        """Whether a network was trained next to the counts."""
        return False

    @property
    def has_int8_weights(self) -> bool:
        """Whether the weights of that network are int8."""
        return False

    @property
    def counted_part(self) -> Any:
        """The counted model in it, whose counts can be shown; None if there is none."""
        return None

    @property
    def ngrams(self) -> Any:
        """The n-gram counts among its sums; None if there are none."""
        return None

    @property
    def counted_frequencies(self: Any) -> Array:
        """How often each token occurs in its sums, (N,): `frequencies`, unless those are the encoder's."""
        frequencies: Array = self.frequencies
        return frequencies

    @property
    def hidden_size(self) -> int:
        """The number of entries that describe a context, see `hidden`; 0 if the model has no such description."""
        return 0

    def sample(
        self, state: State, rng: np.random.Generator, temperature: float = 1.0, top_k: int = 0
    ) -> tuple[int, State]:
        """A token from the distribution after `state`, and the state after it, without computing all probabilities.

        With `top_k`, it is one of the `top_k` most likely tokens.
        """
        raise SaffuError("this model samples from the probabilities of all tokens; use `next_log_probabilities`")

    def scores_by_part(self: Any, corpus: TokenCorpus, progress: str | None = None) -> dict[str, Floats]:
        """ln p of every target (targets,) by the whole model, named "", and by each of its parts."""
        return {"": self.log_probabilities(corpus, progress)}

    def without_memory(self) -> Model | None:
        """The same model without its memory of the document; None if it has none."""
        return None

    def online(self) -> Model:
        """The same model, which remembers each document of a corpus in those after it."""
        raise SaffuError("this model has no memory of a document, so it cannot read online")

    def without_counts(self) -> Model:
        """The same model without its sums, which predicts the same but no longer changes."""
        raise SaffuError("this model predicts from its counts, so it cannot be exported without them")

    def without_network(self) -> Model | None:
        """The counted model alone; None if no network can be trained next to it."""
        return None

    def with_int8_weights(self) -> Model | None:
        """The same model, the weights of whose network are int8; None if it has no network."""
        return None

    def hidden(self, states: Sequence[State]) -> Array:
        """A description of the context of each state, (states, hidden_size) float32."""
        raise SaffuError("this model has no hidden states; use another preset")

    def hidden_vectors(self) -> Array | None:
        """Token vectors (N, D) that belong next to `hidden`: of the last token, and of the mean of the document."""
        return None


class Model(Capabilities, Protocol):
    """A fitted language model over token ids."""

    @property
    def config(self) -> Any:
        """The settings it was made with; their class determines the solution."""
        ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def frequencies(self) -> Array:
        """How often each token was counted, (N,)."""
        ...

    @property
    def sums(self) -> Any:
        """The counts its decoder follows from; None if it no longer follows from counts."""
        ...

    def log_probabilities(self, corpus: TokenCorpus, progress: str | None = None) -> Floats:
        """ln p of every target of the corpus, (targets,)."""
        ...

    def start(self, context: Iterable[int] = ()) -> State:
        """The state of a document that begins with these tokens."""
        ...

    def advance(self, state: State, token: int) -> State:
        """The state after one more token."""
        ...

    def next_log_probabilities(self, states: Sequence[State]) -> Array:
        """ln p of every token after each state, (states, N) float32; −inf for what is never predicted."""
        ...

    def explain(self, context: Sequence[int]) -> Explanation:
        """The prediction of the token after a context, split into what each part of the context adds."""
        ...

    def vectors(self) -> dict[str, Array]:
        """Token vectors (N, D) by kind, the most useful first."""
        ...

    def count(self, corpus: TokenCorpus) -> Any:
        """The sums of a corpus, seen through this model's encoder."""
        ...

    def solved(self, sums: Any) -> Model:
        """A new model: this encoder, and the decoder that follows from these sums."""
        ...

    def arrays(self) -> Arrays:
        """Everything stored of the model except its sums, by name."""
        ...

    def encoder_arrays(self) -> Arrays:
        """What update, forget, and merge leave unchanged; models can be merged if these are equal."""
        ...

    @property
    def size(self) -> int:
        """The number of stored values that predictions depend on."""
        ...


@dataclass(frozen=True)
class Stage:
    """A step of a fit, and the model it produced: "counted", "init", "tune 1", …"""

    name: str
    model: Model
    facts: Mapping[str, Any]  # to be logged: exponents, warnings, …


@dataclass(frozen=True, eq=False)
class Term:
    """What one part of a model adds to the log-probability of every token, in nats."""

    name: str
    values: Floats  # (N,)
    seen: tuple[int, ...] = ()  # the tokens it saw, oldest first
    weight: float | None = None  # its exponent, or the attention it gets
    slots: int = 1  # number of slots it stands for: `<pad>` fills many
    of_class: Floats | None = None  # (N,) the part of `values` that predicts a token's class; None without classes
    reason: str = ""  # in words, {} for the text it saw; terms with the same are one reason, those without are none


@dataclass(frozen=True, eq=False)
class Explanation:
    """The prediction of one token. The terms add up to `log_probabilities` exactly, normalizers included."""

    context: tuple[int, ...]
    terms: Sequence[Term]
    log_probabilities: Floats  # (N,); −inf for what is never predicted
    details: Mapping[str, Sequence[Term]]  # other breakdowns of the same prediction, by title


@dataclass(frozen=True)
class Score:
    """Negative log-likelihood of a text. Every token and each `<eod>` is a target.

    >>> score = Score(nll=4 * math.log(8), targets=4, bytes=6)
    >>> round(score.perplexity, 6), round(score.bits_per_byte, 6)
    (8.0, 2.0)
    """

    nll: float  # −Σ ln p, in nats
    targets: int  # tokens, including `<eod>`
    bytes: int  # of the text in UTF-8, including one newline per line

    @property
    def perplexity(self) -> float:
        """exp(nll / targets), infinite if it overflows. Not comparable between vocabularies."""
        try:
            return math.exp(self.nll / self.targets)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of text, comparable between any models of the same text."""
        return self.nll / math.log(2) / self.bytes
