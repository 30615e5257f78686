"""The memory of a document: what it counts of the text so far. Kernels, reference, and explanations follow this file.

Every token of a document is predicted before it is read; then it is counted here. The memory belongs to the reader of a
document, not to the model: it begins empty with each document, holds its last tokens up to the setting `cache`, and is
gone afterward. It has two kinds of parts:

    decayed unigrams   p_h = (c_h + STRENGTH f)/(Σ c_h + STRENGTH): a token's weight in c_h halves every h tokens
    contexts           p_m = (c_m + s p)/(Σ c_m + s): what followed the same tokens before; the counts of a context are
                       multiplied by `keep` each time it occurs, so that the latest follower counts most. Of the longest
                       match, c_m is the number of tokens that agree with its latest occurrence

where p is the prediction without the memory or, for a longer n-gram, the p_m of the shorter one. Features are ln(p_h/f)
and ln(1 + c_m/(s p)), so a context says nothing about what did not follow it.

Documents that are read online, one after the other as from a stream, have a second memory: the archive, of all text so
far. Its exponents begin at zero and are learned while reading; those of the document's memory are not reset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saffu.calibrated.config import CalibratedConfig
from saffu.interface import Floats

HALF_LIVES = (20, 150, 1000, 8000)  # tokens
STRENGTH = 5.0  # tokens that the prior is worth in decayed unigrams
AGES = (30, 200, 1500, 10_000)  # tokens of a document: the exponents of decayed unigrams depend on its age
MEMORY_EVIDENCE = 5  # exponents per part: by age, or by whether one or several outputs followed, and how often
ONE_FOLLOWER = (1.5, 3.0)
SEVERAL_FOLLOWERS = 5.0  # counts at which the exponent of a context changes
MATCHES = (7, 10, 16, 32)  # tokens that agree at which the exponent of a match changes
MOST_FOLLOWERS = 64  # of a context
RATE = 0.02  # of learning while reading
SMALLEST_SHARE = 1e-12  # that a prediction without the memory counts for


@dataclass(frozen=True)
class MemoryContext:
    """A kind of context whose followers are counted."""

    name: str
    distances: tuple[int, ...]  # of its tokens, nearest first
    keep: float  # what remains of its counts when it occurs again
    classes: int = 0  # their number; 0 for the tokens themselves
    exact: int = 0  # number of nearest tokens that are seen exactly, not by class
    chained: bool = False  # whether it builds on the context before it in the list
    strength: float = 10.0  # tokens that the shares it builds on are worth
    longest: int = 0  # if set, only its latest occurrence counts, as often as tokens agree, at most this often


ARCHIVE = 5  # times `cache`: tokens of all documents that are remembered when documents are read online
ARCHIVE_HALF_LIVES = (150, 8000)
ARCHIVE_CONTEXTS = (
    MemoryContext("documents, 1 token", (1,), 0.98, strength=1.0),
    MemoryContext("documents, 2 tokens", (1, 2), 0.98, strength=1.0, chained=True),
    MemoryContext("documents, 3 tokens", (1, 2, 3), 0.98, strength=1.0, chained=True),
    MemoryContext("documents, 5 tokens", (1, 2, 3, 4, 5), 0.98, strength=1.0, chained=True),
    MemoryContext("documents, longest match", (1, 2, 3, 4, 5), 1.0, strength=1.0, chained=True, longest=MATCHES[-1]),
)


def memory_contexts(config: CalibratedConfig) -> list[MemoryContext]:
    """Contexts of n-grams, of the last token at two speeds, of a match, of the token before the last, and of classes.

    >>> for context in memory_contexts(CalibratedConfig()):
    ...     print(context.name, context.distances, context.keep)
    document, 1 token lately (1,) 0.75
    document, 1 token (1,) 0.97
    document, 2 tokens (1, 2) 0.95
    document, 3 tokens (1, 2, 3) 0.9
    document, 5 tokens (1, 2, 3, 4, 5) 0.9
    document, longest match (1, 2, 3, 4, 5) 1.0
    document, last but 1 token (2,) 0.95
    document, 1 token and 1 class (1, 2) 0.95
    document, 1 class (1,) 0.98
    """
    contexts = [
        MemoryContext("document, 1 token lately", (1,), 0.75),
        MemoryContext("document, 1 token", (1,), 0.97),
        MemoryContext("document, 2 tokens", (1, 2), 0.95, chained=True),
        MemoryContext("document, 3 tokens", (1, 2, 3), 0.9, chained=True),
        MemoryContext("document, 5 tokens", (1, 2, 3, 4, 5), 0.9, chained=True),
        MemoryContext("document, longest match", (1, 2, 3, 4, 5), 1.0, chained=True, longest=MATCHES[-1]),
        MemoryContext("document, last but 1 token", (2,), 0.95),
    ]
    if config.word_classes:
        fine = config.word_classes
        contexts += [
            MemoryContext("document, 1 token and 1 class", (1, 2), 0.95, classes=fine, exact=1),
            MemoryContext("document, 1 class", (1,), 0.98, classes=fine),
        ]
    return contexts


def memory_parts(config: CalibratedConfig) -> list[str]:
    """The names of the decayed unigrams and of the contexts, in the order of their exponents; none without a memory."""
    if not config.cache:
        return []
    return [
        *(f"document, half-life {half_life}" for half_life in HALF_LIVES),
        *(context.name for context in memory_contexts(config)),
    ]


def first_remembered(window: int, age: int) -> int:
    """The number of the first token that is remembered after `age` tokens of a document.

    The window moves by half its length, so that what it holds does not depend on where reading began.

    >>> [first_remembered(10, age) for age in (10, 11, 15, 16)]
    [0, 5, 5, 10]
    """
    half = max(1, window // 2)
    excess = age - window
    return -(-excess // half) * half if excess > 0 else 0


def memory_slices(config: CalibratedConfig) -> list[slice]:
    """Where the exponents of the prediction without the memory, one, and of each part, MEMORY_EVIDENCE, are."""
    parts = len(HALF_LIVES) + len(memory_contexts(config))
    return [
        slice(0, 1),
        *(slice(1 + MEMORY_EVIDENCE * part, 1 + MEMORY_EVIDENCE * (part + 1)) for part in range(parts)),
    ]


def unfitted_exponents(config: CalibratedConfig) -> Floats:
    """Exponents (2, J) that ignore the memory, until something is learned from a document."""
    exponents = np.zeros((2, memory_slices(config)[-1].stop))
    exponents[:, 0] = 1
    return exponents
