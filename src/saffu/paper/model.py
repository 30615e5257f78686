"""`PaperModel`: the paper's network as a language model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from saffu.errors import SaffuError
from saffu.format import progress_bar
from saffu.interface import Array, Arrays, Capabilities, Explanation, Floats, State, document_of
from saffu.paper import explain
from saffu.paper.config import PaperConfig
from saffu.paper.devices import run_workers, workers_for
from saffu.paper.network import Network, Tables
from saffu.paper.unit import Unit
from saffu.paper.windows import Targets
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, PAD

UNCHANGING = "models of the paper are solved once and do not change; count all of the text again"


class Document(NamedTuple):
    """Everything that predictions depend on, of a document so far."""

    tail: tuple[int, ...]  # the last tokens, as many as windows reach
    position: int  # number of tokens
    total: bytes  # Σ of their embeddings, float64, for the document model; empty without one


class PaperModel(Capabilities):
    """A solved network. It keeps look-ups of the network's weights, so the network must not change anymore.

    It is solved once: what it was counted from is not kept, so documents can be neither added nor removed.
    """

    sums = None

    def __init__(self, network: Network, frequencies: npt.NDArray[np.int64]):
        """`frequencies` (N,) of the targets that the network's embeddings and hidden bits were made from."""
        self.network = network.eval().requires_grad_(False)
        self.frequencies = frequencies

    @classmethod
    def from_arrays(
        cls, config: PaperConfig, vocabulary: int, arrays: Arrays, device: torch.device | str = "cpu"
    ) -> PaperModel:
        """The inverse of `arrays`."""
        try:
            with torch.device("meta"):  # shapes only: what the settings ask for is compared before it is allocated
                shapes = {name: torch.empty(vocabulary, shape.dimension) for name, shape in config.units().items()}
                network = Network(config, shapes, vocabulary)
            weights = {name: torch.tensor(array).float() for name, array in arrays.items() if name != "frequencies"}
            network.load_state_dict(weights, assign=True)
            frequencies = arrays["frequencies"].astype(np.int64)
            if frequencies.shape != (vocabulary,):
                raise RuntimeError("an array of another shape")
        except (KeyError, RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise SaffuError(f"the weights do not match the settings ({reason}); train again") from None
        return cls(network.to(device), frequencies)

    def without_counts(self) -> PaperModel:
        return self

    @property
    def config(self) -> PaperConfig:
        return self.network.config

    @property
    def vocabulary(self) -> int:
        return self.network.vocabulary

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def size(self) -> int:
        return sum(weight.numel() for weight in self.network.state_dict().values())

    @cached_property
    def _tables(self) -> Tables:
        return self.network.tables()

    def with_network(self, network: Network) -> PaperModel:
        """A model with the weights of another network of the same shape."""
        return PaperModel(copy.deepcopy(network), self.frequencies)

    def log_probabilities(self, corpus: TokenCorpus, progress: str | None = None) -> Floats:
        size = self.network.batch_size()
        tables = self._tables
        result = np.empty(corpus.targets)
        workers = workers_for(self.device, corpus.targets // size)

        def work(number: int, stopped: Callable[[], bool]) -> None:
            begin = number * size
            with torch.inference_mode():
                for targets in self.network.batches(corpus, size, number, workers):
                    log_p = self.network.log_probabilities(targets, tables)
                    result[begin : begin + len(log_p)] = log_p.double().cpu().numpy()
                    begin += workers * size
                    bar.update(len(log_p))
                    if stopped():
                        break

        with progress_bar(progress, total=corpus.targets) as bar:
            run_workers(work, workers)
        return result

    def start(self, context: Iterable[int] = ()) -> State:
        E = self._document_embeddings
        empty = Document((), 0, b"" if E is None else np.zeros(E.shape[1]).tobytes())
        return reduce(self.advance, context, State(self, empty))

    def advance(self, state: State, token: int) -> State:
        if not 0 <= token < self.vocabulary:
            raise SaffuError(f"token {token} is outside 0 to {self.vocabulary - 1}; encode text with this tokenizer")
        tail, position, total = document_of(self, state)
        E = self._document_embeddings
        if E is not None:
            total = (np.frombuffer(total) + E[token]).tobytes()
        return State(self, Document((*tail, token)[-self.network.lookback :], position + 1, total))

    def next_log_probabilities(self, states: Sequence[State]) -> Array:
        size = self.network.batch_size()
        result = np.empty((len(states), self.vocabulary), dtype=np.float32)
        with torch.inference_mode():
            for lo in range(0, len(states), size):
                logits = self.network(self.targets_after(states[lo : lo + size]), self._tables)
                result[lo : lo + size] = torch.log_softmax(logits, dim=1).float().cpu().numpy()
        return result

    @cached_property
    def _document_embeddings(self) -> Floats | None:
        """E of the document model in float64, if there is one."""
        return None if self.network.document is None else self.network.document_embeddings.double().cpu().numpy()

    @property
    def hidden_size(self) -> int:
        return len(self.network.M)

    @torch.no_grad()
    def hidden(self, states: Sequence[State]) -> Array:
        """The distributions over hidden bits, side by side, that the final decoder reads."""
        parts = []
        size = self.network.batch_size()
        for first in range(0, len(states), size):
            parts.append(self.network.hidden(self.targets_after(states[first : first + size])).float().cpu().numpy())
        return np.concatenate(parts)

    def targets_after(self, states: Sequence[State]) -> Targets:
        """The next target of each state. Its own id does not affect its prediction; it is set to `<eod>`."""
        lookback = self.network.lookback
        E = self._document_embeddings
        documents = [document_of(self, state) for state in states]
        tokens = np.full((len(states), lookback + 1), PAD, dtype=np.int32)
        for row, document in enumerate(documents):
            tokens[row, lookback - len(document.tail) : lookback] = document.tail
        tokens[:, -1] = EOD
        position = np.array([document.position for document in documents])
        positions, flat = (torch.from_numpy(numbers).to(self.device) for numbers in (position, tokens.reshape(-1)))
        offsets = torch.arange(len(states), device=self.device) * (lookback + 1) + lookback
        means = None
        if E is not None:
            totals = np.stack([np.frombuffer(document.total) for document in documents])
            means = torch.from_numpy((E[PAD] + totals) / (position + 1)[:, None]).to(self.network.document_embeddings)
        return Targets(flat[offsets].long(), positions, torch.zeros_like(positions), flat, offsets, means)

    def explain(self, context: Sequence[int]) -> Explanation:
        exact = PaperModel(copy.deepcopy(self.network).cpu().double(), self.frequencies)
        with torch.no_grad():
            return explain.explain(
                exact.network, self.frequencies, exact.targets_after([exact.start(context)]), context
            )

    def vectors(self) -> dict[str, Array]:
        """By kind: each token's column of M ("decoder"), its decoded embedding E·U in a unit, its embedding E."""
        units = self.network.units.items()
        kinds = {"decoder": self.network.M.T}
        kinds |= {f"{name}.U": unit.E @ nearest_decoder(unit) for name, unit in units}
        kinds |= {f"{name}.E": unit.E for name, unit in units}
        return {kind: np.ascontiguousarray(vectors.float().cpu().numpy()) for kind, vectors in kinds.items()}

    def count(self, corpus: TokenCorpus) -> Any:
        raise SaffuError(UNCHANGING)

    def solved(self, sums: Any) -> PaperModel:
        raise SaffuError(UNCHANGING)

    def arrays(self) -> Arrays:
        weights = {name: weight.cpu().numpy() for name, weight in self.network.state_dict().items()}
        return {"frequencies": self.frequencies, **weights}

    def encoder_arrays(self) -> Arrays:
        return self.arrays()


def nearest_decoder(unit: Unit) -> torch.Tensor:
    """The rows of U (D, D_H) that decode the slot before the target; in mode "sum", those of every slot."""
    return unit.U[-unit.E.shape[1] :]
