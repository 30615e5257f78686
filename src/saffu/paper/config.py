"""Settings of the paper's solution, and of the backpropagation that may follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from saffu.errors import SaffuError
from saffu.settings import Settings, setting

MOST = 1 << 14  # of anything that a weight matrix has one row for


class UnitShape(NamedTuple):
    """The shape of one unit."""

    slots: int  # K
    mode: Literal["sum", "cat"]
    dimension: int  # D

    @property
    def inputs(self) -> int:
        """Rows of U: D, or K·D if slots are side by side."""
        return self.dimension * (self.slots if self.mode == "cat" else 1)


@dataclass(frozen=True)
class PaperConfig(Settings):
    """How a network is shaped and solved. The defaults, `printed`, are the paper's formulas and its best shape.

    The rare settings are choices that the paper leaves open or words ambiguously; docs/paper.md explains each.
    """

    preset: ClassVar[str] = "paper"

    block: int = setting(
        128, "slots of the block unit, marker included (b); 0 for no block unit", low=2, high=MOST, off=True
    )
    radius: int = setting(8, "slots of the radial unit (r); 0 for no radial unit", low=2, high=MOST, off=True)
    block_mode: Literal["sum", "cat"] = setting("sum", "how the block unit joins its slots: added, or side by side")
    radius_mode: Literal["sum", "cat"] = setting("cat", "how the radial unit joins its slots: added, or side by side")
    block_dimension: int = setting(128, "embedding dimension of the block unit (D_b)", low=2, high=MOST)
    radius_dimension: int = setting(32, "embedding dimension of the radial unit (D_r)", low=2, high=MOST)
    hidden_dimension: int = setting(512, "number of hidden bits that each unit predicts (D_H)", low=2, high=MOST)
    document_shards: int = setting(
        256,
        "number of corpus shards the document model distinguishes (Δ); 0 for no document model",
        low=2,
        high=MOST,
        off=True,
    )
    tune_folds: int = setting(
        0, "number of folds over which attention is re-solved from V; the first fold then initializes the model"
    )
    fold_tokens: int = setting(
        1_000_000, "targets per fold: the unit of tuning, and the evaluation interval of backpropagation", low=2
    )
    seed: int = setting(0, "random seed (sample text, random initialization, data order, dropout)", high=2**63 - 1)

    attention: Literal["explicit", "uniform"] = setting(
        "explicit", "attention after initialization: solved from V̂, or uniform", rare=True
    )
    attention_priming: Literal["paper", "slots", "measured"] = setting(
        "paper", "K_W: log K, K, or the mean norm of Q", rare=True
    )
    decoder_priming: Literal["paper", "measured"] = setting(
        "paper", "K_U: K log K, the norm of H under uniform attention, or its mean norm", rare=True
    )
    variation_shift: Literal["bound", "smallest"] = setting(
        "bound",
        "what keeps F(Q, V) positive: the bound c, which makes attention almost uniform, or the least shift that each "
        "row of F needs",
        rare=True,
    )
    variation_sign: Literal[1, -1] = setting(1, "sign of V in F(Q, V); the paper prints +1", rare=True)
    hidden_targets: Literal["raw", "normalized"] = setting(
        "raw", "targets of the units' decoders in F(H, Z): bit-vectors Z, or Z/‖Z‖₁", rare=True
    )
    block_advance: Literal["whole", "shifted"] = setting(
        "whole",
        "blocks cut the document every b − 1 tokens and predict these, i = ⌈m/(b − 1)⌉, or the tokens a place later",
        rare=True,
    )
    pad_side: Literal["left", "right"] = setting(
        "left",
        "where <pad> fills a radius: before the text, so that every slot is a distance, or after it",
        rare=True,
    )
    smoothing: float = setting(
        1e-3,
        "constant for co-occurrences that are zero; the final decoder adds it to all",
        low=1e-12,
        high=1e6,
        rare=True,
    )
    dtype: Literal["float32", "float64"] = setting(
        "float32", "dtype of weights and values while counting; sums are always float64", rare=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.block or self.radius):
            raise SaffuError("`block` and `radius` are both 0; a model needs at least one unit: set one of them")

    @property
    def lookback(self) -> int:
        """How many tokens before a target its windows reach."""
        return max(self.block, self.radius)

    def units(self) -> dict[str, UnitShape]:
        """The units that the model has, by name.

        >>> PaperConfig(block=0).units()
        {'radius': UnitShape(slots=8, mode='cat', dimension=32)}
        """
        shapes = {
            "block": UnitShape(self.block, self.block_mode, self.block_dimension),
            "radius": UnitShape(self.radius, self.radius_mode, self.radius_dimension),
        }
        return {name: shape for name, shape in shapes.items() if shape.slots}


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """How the paper's network is trained with Adam."""

    init: Literal["explicit", "random"] = setting(
        "explicit", "initial weights: the explicit solution (warm start) or random (cold start)"
    )
    init_embeddings: Literal["random", "cipher"] = setting(
        "random", "embeddings of a cold start: random and trained, as in the paper, or the bit-cipher's and kept fixed"
    )
    init_scale: float = setting(
        1.0, "standard deviation of random initial weights, in units of 1/sqrt(fan_in)", high=1000, rare=True
    )
    learning_rate: float = setting(
        1e-2, "learning rate of Adam; the paper's 5e-6 hardly moves random weights", low=1e-30, high=1e30
    )
    batch_size: int = setting(1024, "number of targets per step", low=1, high=1 << 24)
    dropout: float = setting(0.1, "dropout probability for the inputs of the units' decoders", high=0.99)
    max_grad_norm: float = setting(1.0, "maximum gradient norm; 0 disables clipping")
    count_share: float = setting(
        1.0, "fraction of documents used for the explicit solution; below 1, Adam trains on the rest", high=1
    )
    max_folds: int = setting(0, "maximum number of folds; 0 relies on early stopping alone")
    patience: int = setting(
        8, "early stopping: stop after held-out perplexity has increased this many times in total", low=1
    )
    checkpoint_seconds: float = setting(60.0, "seconds between two checkpoints")
    matmul_dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "dtype of the final-decoder matmul; auto: bfloat16 on a GPU, float32 on a CPU", rare=True
    )
    seed: int = setting(0, "seed of random weights, the order of targets, and dropout", high=2**63 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init == "random" and self.count_share < 1:
            raise SaffuError("random initial weights are not counted; remove `count_share` or use `init` explicit")

    @property
    def trains_embeddings(self) -> bool:
        """Whether the embeddings are trained with the other weights, as in the paper's cold starts."""
        return self.init == "random" and self.init_embeddings == "random"
