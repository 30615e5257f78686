"""A mixture of counted models of several texts: each text alone, and all of them together.

    p(n | c) = Σ_m w_m(c) p_m(n | c)

The members m are the models of some parts alone, each with its own counts, classes, and exponents, and one of the sum
of all counts. The weights depend on how certain each member is of the next class, whatever comes (its entropy, and its
largest log-probability): w(c) = softmax(W x(c)), fitted on text that no part has counted (`fit_weights`).

Only the parts' counts are held; the member of all text follows from their sum. Text that is added belongs to the first
part, and text is forgotten in the part that has counted it, so every member is what it would be without that text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add

import numpy as np

from saffu.calibrated.config import MixtureConfig
from saffu.calibrated.kernels import Array
from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.views import CalibratedSums
from saffu.errors import SaffuError
from saffu.files import part_of, require
from saffu.interface import Arrays, Capabilities, Explanation, Floats, State, Term, document_of
from saffu.text.corpus import TokenCorpus

ROUNDS = 40  # of fitting weights
LEAST_GAIN = 1e-6  # nats per target, at which it ends
LEAST_SHARE = 0.05  # of all targets that a member must have
PULL = 1e-4  # of the squared weights, per target, toward zero


@dataclass(frozen=True, eq=False)
class MixtureSums:
    """The counts of each part; None for none."""

    parts: tuple[CalibratedSums | None, ...]

    def __add__(self, other: MixtureSums) -> MixtureSums:
        return MixtureSums(tuple(a + b if a and b else a or b for a, b in zip(self.parts, other.parts, strict=True)))

    def __sub__(self, other: MixtureSums) -> MixtureSums:
        return MixtureSums(tuple(a - b if a and b else a for a, b in zip(self.parts, other.parts, strict=True)))

    def of(self, parts: Iterable[int]) -> CalibratedSums:
        """The counts of some parts together."""
        numbers = list(parts)
        counts = [own for part in numbers if (own := self.parts[part]) is not None and own.ngrams.distinct]
        if len(counts) < len(numbers):
            raise SaffuError("a part of the mixture would have no text; make the mixture again without it")
        return reduce(add, counts)

    @cached_property
    def whole(self) -> CalibratedSums:
        """The counts of all parts together."""
        return self.of(range(len(self.parts)))

    def arrays(self) -> dict[str, Array]:
        stored: dict[str, Array] = {}
        for number, part in enumerate(self.parts):
            stored |= {f"part {number}.{name}": array for name, array in (part.arrays() if part else {}).items()}
        return stored


class MixtureModel(Capabilities):
    """A mixture; see `saffu.interface.Model`."""

    can_sample = True

    def __init__(
        self,
        config: MixtureConfig,
        owners: Sequence[int],
        members: Sequence[CalibratedModel],
        weights: Floats,
        sums: MixtureSums | None,
    ) -> None:
        """`owners`: the part that each member but the last, which has all text, belongs to.

        `weights` (M, 1 + 2M): of a constant, and of the members' certainties.
        """
        self.config = config
        self.owners = [*owners]
        self.members = [*members]
        self.weights = weights
        self.sums = sums
        self.vocabulary = self.whole.vocabulary
        self.parts = config.parts

    @classmethod
    def of(cls, parts: Sequence[CalibratedModel]) -> MixtureModel:
        """An equal mixture of models with the same tokenizer and shape."""
        largest = max(parts, key=lambda part: part.counts)
        config = MixtureConfig(**replace(largest.config).to_dict(), parts=len(parts))
        sums = MixtureSums(tuple(part.sums for part in parts))
        whole = CalibratedModel.from_sums(config, largest.encoder, sums.whole)
        return cls(config, range(len(parts)), [*parts, whole], np.zeros((len(parts) + 1, 2 * len(parts) + 3)), sums)

    def without_member(self, number: int) -> MixtureModel:
        """An equal mixture of the other members."""
        members = [member for m, member in enumerate(self.members) if m != number]
        owners = [owner for m, owner in enumerate(self.owners) if m != number]
        weights = np.zeros((len(members), 1 + 2 * len(members)))
        return MixtureModel(self.config, owners, members, weights, self.sums)

    def _with_members(self, members: Sequence[CalibratedModel], config: MixtureConfig | None = None) -> MixtureModel:
        return MixtureModel(config or self.config, self.owners, members, self.weights, self.sums)

    @property
    def names(self) -> list[str]:
        """Of the members."""
        return [*(f"part {owner + 1}" for owner in self.owners), "all parts"]

    @property
    def whole(self) -> CalibratedModel:
        """The member of all text."""
        return self.members[-1]

    @property
    def counted_part(self) -> CalibratedModel:
        return self.whole

    @property
    def frequencies(self) -> Array:
        return self.whole.frequencies

    @property
    def ngrams(self) -> NgramCounts | None:
        return None if self.sums is None else self.sums.whole.ngrams

    @property
    def hidden_size(self) -> int:
        return self.whole.hidden_size

    def hidden(self, states: Sequence[State]) -> Array:
        return self.whole.hidden([document_of(self, state)[-1] for state in states])

    def hidden_vectors(self) -> Array:
        return self.vectors()["company"]

    def without_memory(self) -> MixtureModel:
        return self._with_members([member.without_memory() for member in self.members], replace(self.config, cache=0))

    def online(self) -> MixtureModel:
        return self._with_members([member.online() for member in self.members])

    def without_counts(self) -> MixtureModel:
        members = [member.without_counts() for member in self.members]
        return MixtureModel(self.config, self.owners, members, self.weights, None)

    def log_weights(self, certainty: Sequence[Array]) -> Floats:
        """ln of the weights, (M, targets), given each member's certainty (targets, 2)."""
        return log_softmax(self.weights @ inputs(certainty))

    def scores_by_part(self, corpus: TokenCorpus, progress: str | None = None) -> dict[str, Floats]:
        log_p, certainty = members_scores(self, corpus, progress)
        mixed = np.logaddexp.reduce(self.log_weights(certainty) + log_p, axis=0)
        return {"": mixed} | dict(zip(self.names, log_p, strict=True))

    def log_probabilities(self, corpus: TokenCorpus, progress: str | None = None) -> Floats:
        return self.scores_by_part(corpus, progress)[""]

    def start(self, context: Iterable[int] = ()) -> State:
        tokens = list(context)
        return State(self, tuple(member.start(tokens) for member in self.members))

    def advance(self, state: State, token: int) -> State:
        owned = zip(self.members, document_of(self, state), strict=True)
        return State(self, tuple(member.advance(own, token) for member, own in owned))

    def _distributions(self, states: Sequence[State]) -> tuple[Floats, Floats]:
        """After each state, ln of the weights (M, states), and ln p of every token by each member (M, states, N)."""
        own = [
            member.next_log_probabilities_and_certainty([document_of(self, state)[m] for state in states])
            for m, member in enumerate(self.members)
        ]
        log_p = np.stack([log_p for log_p, _ in own]).astype(np.float64)
        return self.log_weights([certainty for _, certainty in own]), log_p

    def next_log_probabilities(self, states: Sequence[State]) -> Array:
        log_w, log_p = self._distributions(states)
        return np.asarray(np.logaddexp.reduce(log_w[:, :, None] + log_p, axis=0), dtype=np.float32)

    def sample(
        self, state: State, rng: np.random.Generator, temperature: float = 1.0, top_k: int = 0
    ) -> tuple[int, State]:
        """A token drawn from one of the members, each as often as it has a say, and the state after it."""
        if temperature != 1 or top_k:
            p = np.exp(self.next_log_probabilities([state])[0].astype(np.float64) / temperature)
            if top_k:
                p[p < np.partition(p, -min(top_k, len(p)))[-min(top_k, len(p))]] = 0
            token = int(rng.choice(len(p), p=p / p.sum()))
            return token, self.advance(state, token)
        document = document_of(self, state)
        certainty = [member.certainty(own)[None] for member, own in zip(self.members, document, strict=True)]
        shares = np.exp(self.log_weights(certainty)[:, 0]).cumsum()
        number = int(np.searchsorted(shares, rng.random() * shares[-1], side="right"))
        token, after = self.members[number].sample(document[number], rng)
        states = [after if m == number else member.advance(document[m], token) for m, member in enumerate(self.members)]
        return token, State(self, tuple(states))

    def explain(self, context: Sequence[int]) -> Explanation:
        """The terms of the member of all text, and what the mixture adds to them; they add up exactly."""
        explained = self.whole.explain(context)
        (log_w, log_p) = self._distributions([self.start(context)])
        mixed = np.logaddexp.reduce(log_w + log_p[:, 0], axis=0)  # (N,)
        predicted = np.isfinite(mixed)
        added = np.zeros(self.vocabulary)
        added[predicted] = mixed[predicted] - explained.log_probabilities[predicted]
        share = 1 - float(np.exp(log_w[-1, 0]))
        shares = []
        for m, name in enumerate(self.names):
            values = np.zeros(self.vocabulary)
            values[predicted] = np.exp(log_w[m, 0] + log_p[m, 0, predicted] - mixed[predicted])
            shares.append(Term(name, values, weight=float(np.exp(log_w[m, 0]))))
        terms = [*explained.terms, Term("parts", added, (), share)]
        return Explanation(tuple(context), terms, mixed, {**explained.details, "share of each part": shares})

    def vectors(self) -> dict[str, Array]:
        """Token vectors by the company that tokens keep in all text, (N, 100)."""
        if self.sums is None:
            return self.whole.vectors()  # which says why there are none
        return self.whole.with_sums(self.sums.whole).vectors()

    def count(self, corpus: TokenCorpus) -> MixtureSums:
        """The counts of a corpus, as text of the first part."""
        return self.count_in(0, corpus)

    def count_in(self, part: int, corpus: TokenCorpus) -> MixtureSums:
        counts = self.whole.count(corpus)
        return MixtureSums(tuple(counts if number == part else None for number in range(self.parts)))

    def solved(self, sums: MixtureSums) -> MixtureModel:
        """The mixture that follows from these counts; weights, classes, and exponents stay."""
        counts = [*(sums.of([owner]) for owner in self.owners), sums.whole]
        members = [
            CalibratedModel.from_sums(self.config, member.encoder, own)
            for member, own in zip(self.members, counts, strict=True)
        ]
        return MixtureModel(self.config, self.owners, members, self.weights, sums)

    def arrays(self) -> dict[str, Array]:
        stored: dict[str, Array] = {"weights": self.weights, "owners": np.array(self.owners, dtype=np.int64)}
        for m, member in enumerate(self.members):
            stored |= {f"member {m}.{name}": array for name, array in member.arrays().items()}
        return stored

    def encoder_arrays(self) -> dict[str, Array]:
        stored: dict[str, Array] = {"weights": self.weights}
        for m, member in enumerate(self.members):
            stored |= {f"member {m}.{name}": array for name, array in member.encoder_arrays().items()}
        return stored

    @classmethod
    def from_arrays(cls, config: MixtureConfig, arrays: Arrays, sums: Arrays | None = None) -> MixtureModel:
        """The mixture whose `arrays()` these are, and the counts, if given, whose `arrays()` are `sums`."""
        weights = arrays["weights"]
        owners = arrays["owners"]
        number = owners.size + 1
        damaged = "the weights of the mixture are damaged; restore the folder or mix again"
        require(owners.ndim == 1 and owners.dtype == np.int64 and len(np.unique(owners)) == owners.size, damaged)
        require(bool(((owners >= 0) & (owners < config.parts)).all()), damaged)
        require(weights.shape == (number, 1 + 2 * number) and bool(np.isfinite(weights).all()), damaged)
        members = [CalibratedModel.from_arrays(config, part_of(arrays, f"member {m}.")) for m in range(number)]
        if len({member.vocabulary for member in members}) > 1:
            raise SaffuError("the parts of the mixture do not fit together; restore the folder or mix again")
        counts = None
        if sums is not None:
            views = members[-1].views
            own = [part_of(sums, f"part {m}.") for m in range(config.parts)]
            counts = MixtureSums(tuple(CalibratedSums.from_arrays(config.order, views, part) for part in own))
        return cls(config, owners.tolist(), members, np.asarray(weights, dtype=np.float64), counts)

    @property
    def size(self) -> int:
        """The stored numbers of all parts, and the weights."""
        return sum(member.size for member in self.members) + self.weights.size


def members_scores(model: MixtureModel, corpus: TokenCorpus, progress: str | None = None) -> tuple[Floats, list[Array]]:
    """ln p of every target by each member (M, targets), and each member's certainty (targets, 2)."""
    own = [member.log_probabilities_and_certainty(corpus, progress) for member in model.members]
    return np.stack([log_p for log_p, _ in own]), [certainty for _, certainty in own]


def inputs(certainty: Sequence[Array]) -> Floats:
    """x, (1 + 2M, targets): one, and the certainties of all members."""
    return np.concatenate([np.ones((1, len(certainty[0]))), *(own.T.astype(np.float64) for own in certainty)])


def log_softmax(scores: Floats) -> Floats:
    """Over the first axis."""
    return np.asarray(scores - np.logaddexp.reduce(scores, axis=0))


def fitted_mixture(parts: Sequence[CalibratedModel], corpus: TokenCorpus) -> MixtureModel:
    """The mixture of models that predicts a corpus best, which none of them has counted.

    Members with hardly any weight are left out, because each of them costs time.
    """
    model = MixtureModel.of(parts)
    log_p, certainty = members_scores(model, corpus)
    while True:
        model.weights = fit_weights(log_p, certainty)
        shares = np.exp(model.log_weights(certainty)).mean(1)
        least = int(shares[:-1].argmin()) if len(shares) > 2 else -1
        if least < 0 or shares[least] > LEAST_SHARE:
            return model
        model = model.without_member(least)
        log_p = np.delete(log_p, least, axis=0)
        del certainty[least]


def fit_weights(log_p: Floats, certainty: Sequence[Array]) -> Floats:
    """The weights (M, 1 + 2M) that make targets most likely, given ln p (M, targets) and certainties (targets, 2).

    Expectation maximization: the members' shares of each target, then one Newton step of the logistic regression that
    predicts these shares. Steps that would lose are halved.
    """
    x = inputs(certainty)  # (J, targets)
    mean = x[1:].mean(1)
    spread = x[1:].std(1) + 1e-9
    x[1:] = (x[1:] - mean[:, None]) / spread[:, None]
    weights = np.zeros((len(log_p), len(x)))

    def value(weights: Floats) -> float:
        mixed = np.logaddexp.reduce(log_softmax(weights @ x) + log_p, axis=0)
        return float(mixed.mean()) - PULL * float((weights**2).sum())

    now = value(weights)
    for _ in range(ROUNDS):
        step = newton_step(weights, x, log_p)
        size = 1.0
        while (after := value(weights + size * step)) < now and size > 1e-3:
            size /= 2
        if after < now + LEAST_GAIN:
            break
        weights, now = weights + size * step, after
    weights[:, 1:] /= spread  # back to certainties as they are
    weights[:, 0] -= weights[:, 1:] @ mean
    return weights


def newton_step(weights: Floats, x: Floats, log_p: Floats) -> Floats:
    """The step (M, J) of the regression of the members' shares of targets on x (J, targets)."""
    members, features = weights.shape
    log_w = log_softmax(weights @ x)
    joint = log_w + log_p
    shares = np.exp(joint - np.logaddexp.reduce(joint, axis=0))  # (M, targets)
    w = np.exp(log_w)
    targets = x.shape[1]
    gradient = (shares - w) @ x.T / targets - 2 * PULL * weights  # (M, J)
    curvature = np.zeros((members, features, members, features))
    for a in range(members):
        for b in range(members):
            spread = w[a] * ((a == b) - w[b])
            curvature[a, :, b, :] = (x * spread) @ x.T / targets
    flat = curvature.reshape(members * features, -1) + 2 * PULL * np.eye(members * features)
    return np.linalg.solve(flat, gradient.ravel()).reshape(members, features)
