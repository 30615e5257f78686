"""Settings of the paper's solution, and of the backpropagation that may follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from saffu.errors import SaffuError
from saffu.settings import Settings, setting

MOST = 1 << 14  # of anything that a weight matrix has one row for
COUNTED_MARKERS = (
    "padding",
    "zero-padding",
    "counted",
)  # values of `special_noise` that give `<sod>` and `<frg>` counts


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
    """How a network is shaped and solved. The defaults are those of the paper's "best" model.

    The rare settings are the places where the paper can be read in more than one way; docs/paper.md explains each.
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
    hidden_dimension: int = setting(128, "number of hidden bits that each unit predicts (D_H)", low=2, high=MOST)
    document_shards: int = setting(
        0,
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

    special_noise: Literal["masked", "zero", "pure", "zero-padding", "padding", "counted", "counted-padding"] = setting(
        "masked",
        "f of <pad>, <sod>, and <frg>: 0, as they are never targets, and a zero vector for <pad> (zero) or not (pure); "
        "the same for <pad> alone, and the other two as often as they are seen (zero-padding, padding); all as often "
        "as they are seen (counted), or <pad> alone (counted-padding); zero in blocks, counted-padding in radii "
        "(masked)",
        rare=True,
    )
    query_slot: Literal["previous", "first"] = setting(
        "previous", "slot used as the attention query (h): the one before the target, or the first", rare=True
    )
    attention: Literal["explicit", "uniform"] = setting(
        "explicit", "attention after initialization: solved from V̂, or uniform", rare=True
    )
    attention_priming: Literal["paper", "slot_weight", "slots", "measured"] = setting(
        "paper", "K_W: log K in base e, in the base of `slot_weight`, K, or the mean norm of Q", rare=True
    )
    decoder_priming: Literal["paper", "measured"] = setting(
        "paper", "K_U: the norm of H under uniform attention, or its mean norm", rare=True
    )
    variation_shift: Literal["bound", "smallest"] = setting(
        "bound",
        "what is added to V so that F(Q, V) is positive: the bound c, which makes attention almost uniform, or the "
        "least that each row of F needs",
        rare=True,
    )
    variation_sign: Literal[1, -1] = setting(1, "sign of V in F(Q, V); the paper prints +1", rare=True)
    accumulate: bool = setting(
        True, "keep adding to the decoder counts during tuning instead of restarting them", rare=True
    )
    restart_attention: bool = setting(True, "discard the counts of V̂ at the first tuning", rare=True)
    slot_weight: Literal["decimal", "natural", "unit"] = setting(
        "decimal", "weight of a slot: −log softmax(QW) in base 10 or e, or divided by log K to about 1", rare=True
    )
    hidden_targets: Literal["raw", "normalized"] = setting(
        "raw", "targets of the units' decoders in F(H, Z): bit-vectors Z, or Z/‖Z‖₁", rare=True
    )
    block_advance: Literal["shifted", "whole", "sliding"] = setting(
        "shifted",
        "blocks cut the document every b − 1 tokens and predict the tokens a place later, or these; or each one ends "
        "right before its target",
        rare=True,
    )
    padding: Literal["right", "left"] = setting(
        "right", "where <pad> fills a block: from the target on, or before the marker", rare=True
    )
    radius_padding: Literal["right", "left"] = setting(
        "right",
        "where <pad> fills a radius: after the text, or before it, so that every slot is a distance",
        rare=True,
    )
    radius_span: Literal["document", "start", "blocks", "block"] = setting(
        "document",
        "what a radius spans: the document, <sod> and the document, all blocks so far with their markers, or the "
        "target's block",
        rare=True,
    )
    gap: Literal["none", "block", "radius", "both"] = setting(
        "none", "units that skip the token right before the target", rare=True
    )
    smoothing: float = setting(
        1e-3,
        "constant for co-occurrences that are zero; the final decoder adds it to all",
        low=1e-12,
        high=1e6,
        rare=True,
    )
    dtype: Literal["float32", "float64"] = setting(
        "float32", "dtype of the values being counted; sums are always float64", rare=True
    )
    save_dtype: Literal["float32", "float16"] = setting(
        "float32", "dtype of the saved weights; float16 halves the file size", rare=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.block or self.radius):
            raise SaffuError("`block` and `radius` are both 0; a model needs at least one unit: set one of them")
        if self.radius_span == "block" and not self.block:
            raise SaffuError("`radius_span` block needs blocks; set `block`, or use `radius_span` document")
        if self.radius_span == "blocks" and self.skips("radius"):
            raise SaffuError("a radius through blocks cannot skip a token; use `gap` block or `radius_span` document")

    @property
    def lookback(self) -> int:
        """How many tokens before a target its windows reach."""
        return max(self.block, self.radius) + (self.gap != "none")

    def skips(self, unit: str) -> bool:
        """Whether a unit skips the token right before the target."""
        return self.gap in (unit, "both")

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
        1e-2, "learning rate of Adam; the paper's 5e-6 hardly moves random weights", high=1e30
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
