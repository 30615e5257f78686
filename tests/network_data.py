"""Networks with random weights, without torch."""

import numpy as np

from saffu.companion.weights import CERTAINTIES, HEAD, Weights
from saffu.text.tokenizer import EOD

VOCABULARY, CONTEXT, DEPTH, CLASSES = 300, 70, 2, 7  # more than two panels of tokens, and more than one of outputs
CLASS_OF = np.concatenate([np.zeros(EOD), np.random.default_rng(1).permutation(np.arange(VOCABULARY - EOD) % CLASSES)])


def random_weights(with_classes: bool, seed: int = 0, context: int = CONTEXT) -> Weights:
    """Weights of a size at which everything matters: attention is not flat, and no output is certain."""
    rng, width = np.random.default_rng(seed), HEAD * DEPTH

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return np.asarray(rng.normal(0, scale, shape), dtype=np.float32)

    return Weights(
        embedding=draw(VOCABULARY, width, scale=0.2),
        attention=draw(DEPTH, 4, width, width, scale=width**-0.5),
        mlp=draw(DEPTH, 2, 4 * width, width, scale=width**-0.5),
        distance=draw(DEPTH, DEPTH, context),
        sink=draw(DEPTH, DEPTH),
        output_map=draw(width, width, scale=width**-0.5),
        output_bias=draw(VOCABULARY - EOD),
        gate_weight=draw(width + CERTAINTIES),
        gate_bias=draw(),
        head_gate=draw(DEPTH, width, DEPTH, scale=width**-0.5),
        class_map=draw(CLASSES, width, scale=width**-0.5) if with_classes else None,
        class_bias=draw(CLASSES) if with_classes else None,
    )
