"""From batches of token ids to logits and hidden states: everything `modeling_saffu.py` needs of a model.

A row of ids is a document: `<sod>` starts it anew, `<eod>` ends a line and stays in the context, and `<pad>`, `<frg>`,
and masked tokens are skipped. A row that does not begin with `<sod>` is a document as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saffu.files import map_arrays
from saffu.interface import Array, State
from saffu.model.export import VECTORS
from saffu.model.language_model import SaffuLM
from saffu.text.tokenizer import EOD, SOD

LOWEST = -1e4  # logit of probability 0: finite, so that 0 times its logarithm is 0


class Predictor:
    """An exported model, read from its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = SaffuLM.load(folder).model_
        self.vectors = map_arrays(folder / VECTORS)["vectors"] if (folder / VECTORS).exists() else None
        self.start = self.model.start()
        self.next: dict[tuple[int, int], State] = {}  # of the latest call: the state after a state's id and a token

    def states(self, ids: Array, real: Array) -> list[list[State]]:
        """The state of each row's document after each of its tokens, (B, T).

        Those of the latest call are reused, so that a text generated token by token is read once.
        """
        if ids.size and not 0 <= ids.min() <= ids.max() < self.model.vocabulary:
            raise IndexError(f"token ids must be from 0 to {self.model.vocabulary - 1}; use the model's own tokenizer")
        steps: dict[tuple[int, int], State] = {}
        rows = []
        for tokens, present in zip(ids.tolist(), real.tolist(), strict=True):
            state = self.start
            row = []
            for token, is_real in zip(tokens, present, strict=True):
                if is_real and token == SOD:
                    state = self.start
                elif is_real and token >= EOD:
                    step = (id(state), token)
                    state = steps[step] = steps.get(step) or self.next.get(step) or self.model.advance(state, token)
                row.append(state)
            rows.append(row)
        self.next = steps
        return rows

    def logits(self, ids: Array, real: Array, keep: slice | Array) -> Tensor:
        """ln p of the token after each kept position, (B, kept, N) float32; −10,000 for what is never predicted.

        `ids` (B, T) and `real` (B, T), False for masked tokens; `keep` selects among the T positions.
        """
        rows = [[row[place] for place in np.arange(ids.shape[1])[keep]] for row in self.states(ids, real)]
        return distinct(rows, lambda given: np.maximum(self.model.next_log_probabilities(given), LOWEST))

    def hidden(self, ids: Array, real: Array) -> Tensor:
        """A description of the context at each position, (B, T, hidden_size) float32, without gradients.

        The paper's model: the distributions over hidden bits, side by side, that its final decoder reads.
        A calibrated model: max(0, log(p(k | context) / f_k)) for each class k of the next token, the vector of the last
        token, and the mean vector of the document so far; token vectors are scaled to a mean square of 1 per entry.
        A model with a network trained next to its counts: the network's state.
        """
        described = distinct(self.states(ids, real), self.model.hidden)
        if self.vectors is None:
            return described
        seen = document_vectors(self.vectors, np.where(real, ids, 0))
        return torch.cat([described, torch.from_numpy(seen)], dim=2)


def distinct(rows: Sequence[Sequence[State]], compute: Callable[[list[State]], Array]) -> Tensor:
    """What `compute` gives for every state (B, T), computed once for states that occur several times."""
    numbers: dict[State, int] = {}
    index = [[numbers.setdefault(state, len(numbers)) for state in row] for row in rows]
    return torch.from_numpy(compute(list(numbers)))[torch.tensor(index, dtype=torch.long)]


def document_vectors(vectors: Array, tokens: Array) -> Array:
    """The vector of the last token, then the mean vector of the document so far, at each position: (B, T, 2·D).

    Zeros before the first token.

    >>> vectors = np.pad(np.eye(4), ((4, 0), (0, 0)))[:6]  # unit vectors of the tokens 4 and 5
    >>> document_vectors(vectors, np.array([[SOD, 4, 5, 0]]))[0]
    array([[0., 0., 0., 0., 0., 0., 0., 0.],
           [2., 0., 0., 0., 2., 0., 0., 0.],
           [0., 2., 0., 0., 1., 1., 0., 0.],
           [0., 2., 0., 0., 1., 1., 0., 0.]], dtype=float32)
    """
    scaled = vectors.astype(np.float32) * np.float32(vectors.shape[1] ** 0.5)
    scaled[:EOD] = 0
    out = np.zeros((*tokens.shape, 2, vectors.shape[1]), dtype=np.float32)
    for row, described in zip(tokens.tolist(), out, strict=True):
        last = SOD
        total = np.zeros_like(scaled[0])
        number = 0
        for place, token in enumerate(row):
            if token == SOD:
                last = SOD
                total = np.zeros_like(total)
                number = 0
            elif token >= EOD:
                last = token
                total = total + scaled[token]
                number = number + 1
            described[place] = scaled[last], total / max(number, 1)
    return out.reshape(*tokens.shape, -1)
