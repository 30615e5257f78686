"""Settings of backpropagation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saffu.errors import SaffuError
from saffu.settings import Settings, setting


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
