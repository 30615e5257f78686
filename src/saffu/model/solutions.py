"""The solutions: which settings select them, and how they are fitted, trained, read from a folder, and described.

Nothing else asks which kind of model it holds: it asks a `Solution`, or the model (see `interface.Capabilities`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saffu.calibrated.config import CalibratedConfig
from saffu.companion.config import CompanionConfig
from saffu.errors import SaffuError
from saffu.interface import Arrays, Model, Stage
from saffu.paper.config import PaperConfig, TrainingConfig
from saffu.settings import Settings
from saffu.text.corpus import Line, TokenCorpus
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

if TYPE_CHECKING:
    from saffu.training.run import Run


@dataclass(frozen=True)
class Solution:
    """One way to turn text into a model. Torch is imported inside the functions that need it."""

    config: type[Settings]
    tokenizer: TokenizerConfig
    fit: Callable[..., Iterator[Stage]]
    from_arrays: Callable[[Any, int, Arrays, Arrays | None, str], Model]
    description: str  # after "A language model made by saffu:"
    split: str = "file"  # what a document is, unless `--split` says otherwise
    scales: bool = False  # whether it can be counted within a limit of memory, or on a cluster
    train: Callable[..., Run[Any, Any]] | None = None  # a run that trains the weights of a model
    training: type[Settings] | None = None  # settings of a training that may follow, apart from `config`
    trained_as: str | None = None  # the preset of a model that is trained, if it is another one
    training_title: str = "training"
    made_by: str = ""  # the command that makes such a model, if not `saffu train --preset`

    @property
    def always_trains(self) -> bool:
        """Whether its settings are those of a training, too."""
        return self.train is not None and self.training is None


def fit_calibrated(
    corpus: TokenCorpus, vocabulary: int, config: CalibratedConfig, device: str, **options: Any
) -> Iterator[Stage]:
    require_cpu(device)
    refuse(options, "counted models")
    from saffu.calibrated.fit import fit

    return fit(corpus, vocabulary, config)


def calibrated_from_arrays(
    config: CalibratedConfig, vocabulary: int, arrays: Arrays, sums: Arrays | None, device: str
) -> Model:
    require_cpu(device)
    from saffu.calibrated.model import CalibratedModel

    return CalibratedModel.from_arrays(config, vocabulary, arrays, sums)


def fit_companion(
    corpus: TokenCorpus, vocabulary: int, config: CompanionConfig, device: str, **options: Any
) -> Iterator[Stage]:
    """Count; `SaffuLM.backprop` trains the network next to the counts."""
    require_usable(device)
    from saffu.companion.model import CompanionModel

    for stage in fit_calibrated(corpus, vocabulary, config, "cpu", **options):
        counted: Any = stage.model
        yield Stage(stage.name, CompanionModel(config, counted, None, device), stage.facts)


def settings_of_counts(config: Settings) -> Settings:
    """Return the settings of a counted model without those of the network that is trained next to it."""
    if not isinstance(config, CompanionConfig):
        return config
    return CalibratedConfig(**{name: getattr(config, name) for name in CalibratedConfig().to_dict()})


def next_to_counts(model: Model, config: Any, device: str) -> Model:
    """A counted model as one that a network can be trained next to."""
    require_usable(device)
    from saffu.companion.model import CompanionModel

    return CompanionModel(config, model.counted_part, None, device)


def companion_from_arrays(
    config: CompanionConfig, vocabulary: int, arrays: Arrays, sums: Arrays | None, device: str
) -> Model:
    require_usable(device)
    from saffu.companion.model import CompanionModel

    return CompanionModel.from_arrays(config, vocabulary, arrays, sums, device)


def fit_paper(
    corpus: TokenCorpus,
    vocabulary: int,
    config: PaperConfig,
    device: str,
    training: Any = None,
    embeddings: Any = None,
) -> Iterator[Stage]:
    require_usable(device)
    if training is not None:
        from saffu.paper.start import start

        return start(corpus, vocabulary, config, training, device)
    from saffu.paper.fit import fit

    return fit(corpus, vocabulary, config, device, embeddings)


def paper_from_arrays(config: PaperConfig, vocabulary: int, arrays: Arrays, sums: Arrays | None, device: str) -> Model:
    require_usable(device)
    from saffu.paper.model import PaperModel

    return PaperModel.from_arrays(config, vocabulary, arrays, device)


def train_companion(
    model: Any,
    config: CompanionConfig,
    tokenizer: Tokenizer,
    training: None,
    corpus: TokenCorpus,
    dev: TokenCorpus,
    **options: Any,
) -> Run[Any, Any]:
    from saffu.companion.config import resolved
    from saffu.companion.spelling import spellings_of
    from saffu.companion.train import Training

    spellings = None
    if model.device != "cpu":  # where its gain has been measured
        spellings = spellings_of([tokenizer.decode_bytes([id]) for id in range(len(tokenizer))])
    model = model.with_parts(config=resolved(config, corpus.targets, model.device))
    return Training(model, corpus, dev, spellings=spellings, **options)


def train_paper(
    model: Any,
    config: PaperConfig,
    tokenizer: Tokenizer,
    training: TrainingConfig | None,
    corpus: TokenCorpus,
    dev: TokenCorpus,
    **options: Any,
) -> Run[Any, Any]:
    from saffu.paper.backprop import Backprop

    return Backprop(model, corpus, dev, training or TrainingConfig(), **options)


PRESETS = {
    "calibrated": Solution(
        CalibratedConfig,
        TokenizerConfig(),
        fit_calibrated,
        calibrated_from_arrays,
        "a calibrated product of counted views of the context: Kneser–Ney models of single tokens, of the nearest "
        "tokens together, and of their classes, each with a fitted exponent",
        scales=True,
        training=CompanionConfig,
        trained_as="companion",
        training_title="training a network next to the counts",
    ),
    "companion": Solution(
        CompanionConfig,
        TokenizerConfig(),
        fit_companion,
        companion_from_arrays,
        "counted views of the context, as in a counted model, mixed by a learned gate with a small transformer",
        train=train_companion,
        made_by="saffu train --minutes N",
    ),
    "paper": Solution(
        PaperConfig,
        TokenizerConfig(bpe_count="types"),
        fit_paper,
        paper_from_arrays,
        "a network of self-attentive feed-forward units (SAFFU) whose weights were solved from co-occurrences",
        split="line",
        train=train_paper,
        training=TrainingConfig,
        training_title="backpropagation",
    ),
}
DEFAULT_PRESET = "calibrated"
COUNTED = "counted"  # the name of the default preset wherever people read it; folders and settings have the other


def shown_name(name: str) -> str:
    """A preset as people read it.

    >>> shown_name("calibrated"), shown_name("paper")
    ('counted', 'paper')
    """
    return COUNTED if name == DEFAULT_PRESET else name


def offered_presets() -> list[str]:
    """The presets to choose from; other options and commands make the others of them."""
    return [shown_name(name) for name, solution in PRESETS.items() if not solution.made_by]


def offered_as(name: str) -> str:
    """The preset to choose for a model of this one.

    >>> offered_as("companion"), offered_as("paper")
    ('counted', 'paper')
    """
    return shown_name(next((other for other, solution in PRESETS.items() if solution.trained_as == name), name))


def described(name: str) -> str:
    """The preset of a model as `saffu train` names it: a network next to counts is an option of the counted one.

    >>> described("companion"), described("paper")
    ('counted, with a network', 'paper')
    """
    offered = offered_as(name)
    return offered if offered == shown_name(name) else f"{offered}, with a network"


def preset(name: str, **changes: Any) -> Settings:
    """Return the settings of a preset, with some of them changed.

    >>> preset("paper", radius=5).radius
    5
    """
    return solution(name).config.from_dict(changes)


def solution(name: str) -> Solution:
    """The solution of a preset."""
    stored = DEFAULT_PRESET if name == COUNTED else name
    if stored not in PRESETS:
        raise SaffuError(f"unknown preset {name!r}; choose one of {', '.join(map(shown_name, PRESETS))}")
    return PRESETS[stored]


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
            names = " or ".join(kind.__name__ for kind in kinds)
            example = ", such as saffu.preset('paper')" if kinds == [Settings] else ""
            raise SaffuError(f"`{name}` is {value!r:.80}; pass an object of the class {names}{example}")


def require_usable(device: str) -> None:
    """Fail early, and in one line, on a device that this machine does not have."""
    if device != "cpu":  # which needs no torch
        from saffu.paper.devices import usable_device

        usable_device(device)


def require_cpu(device: str) -> None:
    if device != "cpu":
        raise SaffuError(f"counted models run on the CPU, not on {device!r}; omit `device`")
