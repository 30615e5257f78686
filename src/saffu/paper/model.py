"""`PaperModel`: the paper's network as a language model, with the sums that its final decoder follows from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from saffu.errors import SaffuError
from saffu.files import are_counts
from saffu.format import progress_bar
from saffu.interface import Array, Arrays, Capabilities, Explanation, Floats, State, document_of
from saffu.paper import explain
from saffu.paper.config import PaperConfig
from saffu.paper.counting import count_final, counting_network
from saffu.paper.devices import run_workers, workers_for
from saffu.paper.network import Network, Tables
from saffu.paper.solving import solve_final, stored
from saffu.paper.unit import Unit
from saffu.paper.windows import Targets
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, PAD

NOISE = 1e-4  # relative rounding error of float32 counts; a difference below zero by more was never counted


class Document(NamedTuple):
    """Everything that predictions depend on, of a document so far."""

    tail: tuple[int, ...]  # the last tokens, as many as windows reach
    position: int  # number of tokens
    total: bytes  # Σ of their embeddings, float64, for the document model; empty without one


@dataclass(frozen=True, eq=False)
class PaperSums:
    """The co-occurrences behind the final decoder, summed over documents."""

    F: Floats  # (rows of M, N) F(h, Y)
    frequencies: npt.NDArray[np.int64]  # (N,) of the targets

    @property
    def targets(self) -> int:
        return int(self.frequencies.sum())

    def __add__(self, other: PaperSums) -> PaperSums:
        return PaperSums(self.F + other.F, self.frequencies + other.frequencies)

    def __sub__(self, other: PaperSums) -> PaperSums:
        """Raises SaffuError if a count would fall below zero. Tokens that no longer occur leave nothing behind."""
        F = self.F - other.F
        frequencies = self.frequencies - other.frequencies
        if frequencies.min() < 0 or (F < -NOISE * (1 + other.F)).any():
            raise SaffuError("cannot forget documents that were not counted; nothing was changed")
        F = np.maximum(F, 0)
        F[:, frequencies == 0] = 0
        return PaperSums(F, frequencies)

    def arrays(self) -> Arrays:
        return {"F": self.F, "frequencies": self.frequencies}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> PaperSums:
        F = arrays["F"]
        frequencies = arrays["frequencies"]
        if F.dtype != np.float64 or F.ndim != 2 or not are_counts(frequencies, F.shape[1]) or not np.isfinite(F).all():
            raise SaffuError("the sums of the final decoder are damaged; train again")
        return cls(F, frequencies)


class PaperModel(Capabilities):
    """A fitted network. It keeps look-ups of the network's weights, so the network must not change anymore."""

    def __init__(self, network: Network, frequencies: npt.NDArray[np.int64], sums: PaperSums | None):
        """`frequencies` (N,) of the targets that the network's embeddings and hidden bits were made from."""
        self.network = network.eval().requires_grad_(False)
        self.frequencies = frequencies
        self.sums = sums

    @classmethod
    def from_arrays(
        cls,
        config: PaperConfig,
        vocabulary: int,
        arrays: Arrays,
        sums_arrays: Arrays | None,
        device: torch.device | str = "cpu",
    ) -> PaperModel:
        """The inverse of `arrays` and `sums.arrays`."""
        try:
            with torch.device("meta"):  # shapes only: what the settings ask for is compared before it is allocated
                shapes = {name: torch.empty(vocabulary, shape.dimension) for name, shape in config.units().items()}
                network = Network(config, shapes, vocabulary)
            weights = {name: torch.tensor(array).float() for name, array in arrays.items() if name != "frequencies"}
            network.load_state_dict(weights, assign=True)
            sums = None if sums_arrays is None else PaperSums.from_arrays(sums_arrays)
            frequencies = arrays["frequencies"].astype(np.int64)
            if frequencies.shape != (vocabulary,) or (sums and sums.F.shape != network.M.shape):
                raise RuntimeError("an array of another shape")
        except (KeyError, RuntimeError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise SaffuError(f"the weights do not match the settings ({reason}); train again") from None
        return cls(network.to(device), frequencies, sums)

    @property
    def counted_frequencies(self) -> Array:
        return self.frequencies if self.sums is None else self.sums.frequencies

    def without_counts(self) -> PaperModel:
        return PaperModel(self.network, self.frequencies, None)

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
        """A model with the weights of another network of the same shape, which no longer follow from sums."""
        return PaperModel(copy.deepcopy(network), self.frequencies, None)

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
        exact = PaperModel(copy.deepcopy(self.network).cpu().double(), self.frequencies, None)
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

    def count(self, corpus: TokenCorpus) -> PaperSums:
        F = count_final(counting_network(self.network), corpus)
        return PaperSums(F.cpu().numpy(), corpus.frequencies(self.vocabulary))

    def solved(self, sums: PaperSums) -> PaperModel:
        network = copy.deepcopy(self.network)
        M = solve_final(torch.tensor(sums.F, device=self.device), self.config)
        network.M.copy_(stored(M, self.config))
        return PaperModel(network, self.frequencies, sums)

    def arrays(self) -> Arrays:
        arrays: dict[str, Array] = {"frequencies": self.frequencies}
        for name, weight in self.network.state_dict().items():
            # Embeddings stay in float32: in float16 some would become zero and have no logarithm.
            narrow = self.config.save_dtype == "float16" and not name.endswith(".E")
            arrays[name] = weight.to(torch.float16 if narrow else torch.float32).cpu().numpy()
        return arrays

    def encoder_arrays(self) -> Arrays:
        return {name: array for name, array in self.arrays().items() if name != "M"}


def nearest_decoder(unit: Unit) -> torch.Tensor:
    """The rows of U (D, D_H) that decode the slot before the target; in mode "sum", those of every slot."""
    return unit.U[-unit.E.shape[1] :]
