"""The solutions: which settings select them, how they are fitted, and how they are read from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from saffu.calibrated.config import CalibratedConfig
from saffu.companion.config import CompanionConfig
from saffu.errors import SaffuError
from saffu.interface import Arrays, Model, Stage
from saffu.paper.config import PaperConfig
from saffu.processes import SINGLE, ProcessGroup
from saffu.settings import Settings
from saffu.text.corpus import Line, TokenCorpus
from saffu.text.tokenizer import Tokenizer, TokenizerConfig


@dataclass(frozen=True)
class Solution:
    """One way to turn text into a model. Torch is imported inside the functions that need it."""

    config: type[Settings]
    tokenizer: TokenizerConfig
    fit: Callable[..., Iterator[Stage]]
    from_arrays: Callable[[Any, int, Arrays, Arrays | None, str], Model]
    trainable: bool = False  # whether its weights can be trained further by backpropagation


def fit_calibrated(
    corpus: TokenCorpus, vocabulary: int, config: CalibratedConfig, device: str, group: ProcessGroup, **options: Any
) -> Iterator[Stage]:
    require_cpu(device)
    if group.size > 1:
        raise SaffuError("calibrated models are fitted in one process; run the command without torchrun")
    refuse(options, "calibrated models")
    from saffu.calibrated.fit import fit

    return fit(corpus, vocabulary, config)


def calibrated_from_arrays(
    config: CalibratedConfig, vocabulary: int, arrays: Arrays, sums: Arrays | None, device: str
) -> Model:
    require_cpu(device)
    from saffu.calibrated.model import CalibratedModel

    return CalibratedModel.from_arrays(config, arrays, sums)


def fit_companion(
    corpus: TokenCorpus, vocabulary: int, config: CompanionConfig, device: str, group: ProcessGroup, **options: Any
) -> Iterator[Stage]:
    """Count, each process of a group for itself; `SaffuLM.backprop` trains the network next to the counts."""
    from saffu.companion.model import CompanionModel

    for stage in fit_calibrated(corpus, vocabulary, config, "cpu", SINGLE, **options):
        counted: Any = stage.model
        yield Stage(stage.name, CompanionModel(config, counted, None, device), stage.facts)


def companion_from_arrays(
    config: CompanionConfig, vocabulary: int, arrays: Arrays, sums: Arrays | None, device: str
) -> Model:
    from saffu.companion.model import CompanionModel

    return CompanionModel.from_arrays(config, arrays, sums, device)


def fit_paper(
    corpus: TokenCorpus,
    vocabulary: int,
    config: PaperConfig,
    device: str,
    group: ProcessGroup,
    training: Any = None,
    embeddings: Any = None,
) -> Iterator[Stage]:
    if training is not None:
        from saffu.paper.start import start

        return start(corpus, vocabulary, config, training, device, group)
    from saffu.paper.fit import fit

    return fit(corpus, vocabulary, config, device, group, embeddings)


def paper_from_arrays(config: PaperConfig, vocabulary: int, arrays: Arrays, sums: Arrays | None, device: str) -> Model:
    from saffu.paper.model import PaperModel

    return PaperModel.from_arrays(config, vocabulary, arrays, sums, device)


PRESETS = {
    "calibrated": Solution(CalibratedConfig, TokenizerConfig(), fit_calibrated, calibrated_from_arrays),
    "companion": Solution(CompanionConfig, TokenizerConfig(), fit_companion, companion_from_arrays, trainable=True),
    "paper": Solution(PaperConfig, TokenizerConfig(bpe_count="types"), fit_paper, paper_from_arrays, trainable=True),
}


def preset(name: str, **changes: Any) -> Settings:
    """Return the settings of a preset, with some of them changed.

    >>> preset("paper", radius=5).radius
    5
    """
    return solution(name).config.from_dict(changes)


def solution(name: str) -> Solution:
    """The solution of a preset."""
    if name not in PRESETS:
        raise SaffuError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def trained_tokenizer(
    tokenizer: Tokenizer | TokenizerConfig | None, documents: TokenCorpus | Iterable[Line], config: Settings
) -> Tokenizer:
    """The tokenizer, trained if necessary."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(documents, TokenCorpus):
        raise SaffuError("a tokenized corpus needs its tokenizer; pass it as SaffuLM(…, tokenizer=…)")
    settings = tokenizer or solution(config.preset).tokenizer
    return Tokenizer.train((text for _, text in documents), settings, "train tokenizer")


def recount(encoder: Model, corpus: TokenCorpus, **options: Any) -> Iterator[Stage]:
    """Fit only the decoder of a model to a corpus."""
    refuse(options, "models with the encoder of another")
    return iter([Stage("recount", encoder.solved(encoder.count(corpus)), {})])


def refuse(options: Mapping[str, Any], what: str) -> None:
    """Raise SaffuError if an option that only the paper's solution has was given."""
    for name, value in options.items():
        if value is not None:
            raise SaffuError(f"{what} do not support `{name}`; fit a model of the preset paper")


def check(**arguments: Any) -> None:
    """Raise SaffuError for an argument that is neither None nor of one of the classes passed with it."""
    for name, (value, *kinds) in arguments.items():
        if value is not None and not isinstance(value, tuple(kinds)):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            example = ", such as saffu.preset('paper')" if kinds == [Settings] else ""
            raise SaffuError(f"`{name}` is {value!r:.80}; pass an object of the class {wanted}{example}")


def require_cpu(device: str) -> None:
    if device != "cpu":
        raise SaffuError(f"calibrated models run on the CPU, not on {device!r}; omit `device`")
