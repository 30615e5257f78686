"""Token and word vectors of a fitted model, as numpy arrays, and who is near whom.

Vectors come in kinds, by where in the model they stand:

    context      calibrated models: a token by the company it keeps (its neighbours' shares, compressed)
    decoder      what speaks for a token: its column of M, or of a unit's U where there is no M
    block.U      what a token says in the block unit: E U, a row for each token
    radius.U     the same of the radial unit, where slots differ: E U_k of the nearest slot
    block.E      the block unit's input: the token's noised bit-vector, which tells tokens apart but not their meaning
    radius.E     the same of the radial unit
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saffu.errors import SaffuError
from saffu.network import Network
from saffu.product import Product
from saffu.tokenizer import EOD, Tokenizer
from saffu.unit import Unit
from saffu.views import token_vectors

Floats = npt.NDArray[np.float32]


class Embeddings:
    """Vectors of one kind, by word.

    lm.embeddings_["dog"]                     the vector of a word
    lm.embeddings_.neighbours("dog", 5)       [(" cat", 0.83), …]: the nearest tokens, by cosine
    lm.embeddings_.vectors                    (N, D), a row for each token id
    lm.embeddings_.of("radius.U")             the same for another of `kinds`

    Rows of `vectors` are the model's own. Similarities are cosines after the mean of all tokens (by frequency) is
    taken off, for what all vectors share tells nothing.
    """

    def __init__(self, tokenizer: Tokenizer, frequencies: Tensor, sources: dict[str, Callable[[], Tensor]], kind: str):
        if kind not in sources:
            raise SaffuError(f"this model has no vectors of the kind {kind!r}; choose one of {', '.join(sources)}")
        self.tokenizer, self.kind = tokenizer, kind
        self._frequencies, self._sources = frequencies, sources

    @property
    def kinds(self) -> list[str]:
        return list(self._sources)

    def of(self, kind: str) -> "Embeddings":
        """Vectors of another kind."""
        return Embeddings(self.tokenizer, self._frequencies, self._sources, kind)

    @cached_property
    def vectors(self) -> Floats:
        """(N, D), a row for each token id."""
        return np.ascontiguousarray(self._sources[self.kind]().detach().cpu().float().numpy())

    @cached_property
    def _directions(self) -> Floats:
        """The same, centred and of unit length."""
        share = self._frequencies.numpy() / self._frequencies.sum().item()
        centred = self.vectors - (share @ self.vectors).astype(np.float32)
        return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12))

    def tokens(self, word: str) -> list[int]:
        """The ids of a word: within a sentence (after a space) or at its start, whichever takes fewer tokens."""
        within, start = self.tokenizer.encode_batch([" " + word, word])
        ids = within if len(within) <= len(start) else start
        if not word.strip():
            raise SaffuError("a word is empty; name one")
        return ids

    def __getitem__(self, word: str) -> Floats:
        """The vector of a word (D,): its token's, or the mean of its tokens' if it has several."""
        return np.asarray(self.vectors[self.tokens(word)].mean(0))

    def _direction(self, word: str) -> Floats:
        mean = self._directions[self.tokens(word)].mean(0)
        return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-12))

    def similarity(self, word: str, other: str) -> float:
        """The cosine of the angle between two words."""
        return float(self._direction(word) @ self._direction(other))

    def neighbours(self, word: str, number: int = 10) -> list[tuple[str, float]]:
        """The tokens nearest to a word, of those that occur in the training text, its own left out."""
        cosines = self._directions @ self._direction(word)
        cosines[self.tokens(word)] = -np.inf
        cosines[: EOD + 1] = -np.inf
        cosines[(self._frequencies == 0).numpy()] = -np.inf
        nearest = np.argsort(-cosines, kind="stable")[:number]
        return [(self.tokenizer.token(int(id)), float(cosines[id])) for id in nearest if np.isfinite(cosines[id])]


def embeddings_of(network: Network | Product, tokenizer: Tokenizer, frequencies: Tensor) -> Embeddings:
    """The vectors of a model, of the kind that tells most."""
    sources = product_sources(network) if isinstance(network, Product) else network_sources(network)
    counted = network.config.embedding == "counted"  # from what follows a token, so they have a meaning of their own
    return Embeddings(tokenizer, frequencies.cpu(), sources, "radius.E" if counted else next(iter(sources)))


def product_sources(product: Product) -> dict[str, Callable[[], Tensor]]:
    stored = product.counts.stored
    return {"context": lambda: token_vectors(stored["memory"] if "memory" in stored else stored["slot 1"])}


def network_sources(network: Network) -> dict[str, Callable[[], Tensor]]:
    sources: dict[str, Callable[[], Tensor]] = {}
    if network.config.hidden_dimension:
        sources["decoder"] = lambda: network.M.T
    else:
        sources["decoder"] = lambda: torch.cat([unit.U.T for unit in network.every_unit()], dim=1)
    units = dict(zip(network.units, network.every_unit(), strict=True))
    sources |= {f"{name}.U": partial(said_by_tokens, unit) for name, unit in units.items()}
    sources |= {f"{name}.E": partial(getattr, unit, "E") for name, unit in units.items()}
    return sources


def said_by_tokens(unit: Unit) -> Tensor:
    """E U, (N, outputs): what each token adds to a unit's logits for its attention, in the nearest slot."""
    nearest = slice(-unit.E.shape[1], None) if unit.mode == "cat" else slice(None)
    return unit.E @ unit.U[nearest]


def to_word2vec(words: Sequence[tuple[str, Floats]]) -> str:
    """Vectors in word2vec's text format, which most tools read: a line of sizes, then a line for each word."""
    lines = [f"{len(words)} {len(words[0][1])}"]
    lines += [f"{word} {' '.join(f'{value:.6g}' for value in vector)}" for word, vector in words]
    return "\n".join(lines) + "\n"
